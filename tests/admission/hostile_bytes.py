"""Files that are no model, or were one: truncated, flipped, random, and lengths that promise what is not there."""

from __future__ import annotations

import io
import os
import pickle
import random
import zipfile
from pathlib import Path

from hostile_case import ADMITTED, ANY, Catalogue, healthy_bytes

BYTES = Catalogue("bytes")
TRUNCATIONS, FLIPPED, RANDOM = 16, 40, 6
# Field numbers and wire types of onnx.proto: 2 is a length-delimited field.
GRAPH, GRAPH_NODE, GRAPH_INITIALIZER, NODE_ATTRIBUTE, ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS = 7, 1, 5, 5, 6, 11
RAW_DATA, DIMS = 9, 1


def varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def delimited(field: int, content: bytes, length: int | None = None) -> bytes:
    """A length-delimited field; `length` is what it claims to hold."""
    return varint(field << 3 | 2) + varint(len(content) if length is None else length) + content


def nested_bodies(levels: int, attribute: int = ATTRIBUTE_GRAPH) -> bytes:
    """A model whose If holds an If, and so on."""
    graph = b""
    for _ in range(levels):
        graph = delimited(GRAPH_NODE, delimited(NODE_ATTRIBUTE, delimited(attribute, graph)) + delimited(4, b"If"))
    return delimited(GRAPH, graph)


for _part in range(1, TRUNCATIONS):
    BYTES.data(f"truncated_{_part}_of_{TRUNCATIONS}", healthy_bytes()[: len(healthy_bytes()) * _part // TRUNCATIONS])
BYTES.data("truncated_by_one", healthy_bytes()[:-1])
BYTES.data("truncated_before_the_operator_sets", healthy_bytes()[: healthy_bytes().rindex(b"com.microsoft") - 10])

for _seed in range(FLIPPED):
    _random, _damaged = random.Random(_seed), bytearray(healthy_bytes())
    for _ in range(1 + _seed % 8):
        _damaged[_random.randrange(len(_damaged))] ^= 1 << _random.randrange(8)
    BYTES.data(f"flipped_{_seed}", bytes(_damaged), ANY, ANY if _seed % 10 == 0 else None)

for _seed in range(RANDOM):
    BYTES.data(f"random_{_seed}", random.Random(_seed).randbytes(10 ** (_seed + 1)))

BYTES.data("empty", b"")
BYTES.data("one_byte", b"\x08")
BYTES.data("zeros", bytes(4096))
BYTES.data("a_length_of_2_gib", delimited(GRAPH, b"", 2**31 - 1))
BYTES.data("a_length_of_4_gib", delimited(GRAPH, b"", 2**32))
BYTES.data("a_length_of_2_to_63", delimited(GRAPH, b"", 2**63))
BYTES.data("a_varint_without_end", b"\x80" * 4096)
BYTES.data("groups_in_groups", b"\x0b" * 100_000)
BYTES.data("field_zero", b"\x02\x00" + healthy_bytes())
BYTES.data("raw_data_of_4_gib", delimited(GRAPH, delimited(GRAPH_INITIALIZER, delimited(RAW_DATA, b"", 2**32))))
BYTES.data("dims_of_4_gib", delimited(GRAPH, delimited(GRAPH_INITIALIZER, delimited(DIMS, b"", 2**32))))
BYTES.data("300_000_empty_nodes", delimited(GRAPH, delimited(GRAPH_NODE, b"") * 300_000))
BYTES.data("300_000_empty_initializers", healthy_bytes() + delimited(GRAPH, b"\x2a\x00" * 300_000))
BYTES.data("bodies_30_deep", nested_bodies(30))
BYTES.data("bodies_500_deep", nested_bodies(500))
BYTES.data("bodies_500_deep_in_a_list", nested_bodies(500, ATTRIBUTE_GRAPHS))
BYTES.data("the_model_twice", healthy_bytes() * 2)  # protobuf merges them
BYTES.data("unknown_fields", healthy_bytes() + delimited(4000, bytes(10**6)), ADMITTED, ADMITTED)
BYTES.data("text_behind_the_model", healthy_bytes() + b"text" * 1000)
BYTES.data("a_pickle", pickle.dumps({"model": list(range(1000))}))
BYTES.data("a_pickle_that_would_run", b"cos\nsystem\n(S'touch pickled'\ntR.")
BYTES.data("json", b'{"graph": {"node": []}}')
BYTES.data("html", b"<!DOCTYPE html><html><body>404</body></html>")
BYTES.data("git_lfs", b"version https://git-lfs.example/spec/v1\noid sha256:00\nsize 1\n")
BYTES.data("gguf", b"GGUF\x03\x00\x00\x00" + bytes(64))
BYTES.data("ort_format", b"\x1c\x00\x00\x00ORTM" + bytes(256))
BYTES.data("safetensors", (64).to_bytes(8, "little") + b'{"w": {"dtype": "F32", "shape": [1]}}'.ljust(64) + bytes(4))
BYTES.data("text_format", b'ir_version: 8\ngraph {\n node { op_type: "Relu" }\n}\n')


@BYTES.file()
def _zip(folder: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("model.onnx", healthy_bytes())
    (folder / "model.onnx").write_bytes(packed.getvalue())


@BYTES.file()
def _folder_called_model(folder: Path) -> Path:
    (folder / "model.onnx").mkdir()
    return folder / "model.onnx"


@BYTES.file()
def _empty_folder(folder: Path) -> Path:
    return folder


@BYTES.file()
def _fifo_called_model(folder: Path) -> None:
    os.mkfifo(folder / "model.onnx")


@BYTES.file()
def _fifo_called_model_in_the_folder(folder: Path) -> Path:
    os.mkfifo(folder / "model.onnx")
    return folder


@BYTES.file()
def _link_to_itself(folder: Path) -> None:
    (folder / "model.onnx").symlink_to("model.onnx")


@BYTES.file()
def _link_to_a_device(folder: Path) -> None:
    (folder / "model.onnx").symlink_to("/dev/zero")


@BYTES.file()
def _three_gib_of_nothing(folder: Path) -> None:
    with (folder / "model.onnx").open("wb") as stream:
        stream.truncate(3 * 2**30)  # sparse: takes no space


@BYTES.file()
def _name_too_long(folder: Path) -> Path:
    return folder / ("m" * 5000 + ".onnx")


def _not_text(name: str, old: bytes) -> None:
    new = b"\xff\xfe" + old[2:]
    assert old in healthy_bytes()
    BYTES.data(f"{name}_that_is_not_text", healthy_bytes().replace(old, new))


for _name, _old in {
    "tensor": b"l0.qk",
    "input": b"input_ids",
    "mask": b"attention_mask",
    "cache": b"past.0.key",
    "output": b"logits",
    "initializer": b"c21",
    "operator": b"Softmax",
    "attribute": b"perm",
    "symbol": b"queries",
    "domain": b"com.microsoft",
    "declared_tensor": b"l0.k.all",
}.items():
    _not_text(_name, _old)
