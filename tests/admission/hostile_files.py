"""Models that name other files: external data that leaves the folder, never ends or lies, and files beside a model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import onnx
from hostile_case import (
    ADMITTED,
    ANY,
    OUTSIDE,
    REFUSED,
    REFUSED_SITE,
    SECRET,
    Catalogue,
    Codes,
    constant,
    healthy,
    healthy_bytes,
    largest,
    maker,
    node,
)
from onnx import TensorProto, helper

FILES = Catalogue("files")
Place = Callable[[Path], None]


def outside(folder: Path) -> Path:
    """A file of the machine's that no model has any business with."""
    return folder.parent / OUTSIDE / SECRET


def point(tensor: TensorProto, location: str, **numbers: object) -> None:
    """Stores a tensor outside the graph."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in {"location": location, **numbers}.items():
        tensor.external_data.add(key=key, value=str(value))


def write(folder: Path, model: onnx.ModelProto) -> None:
    (folder / "model.onnx").write_bytes(model.SerializeToString())


def _location(
    name: str, location: str | Callable[[Path], str], place: Place | None = None, exported=REFUSED, **numbers
):  # type: ignore[no-untyped-def]
    """The largest weight lies at a location; `place` makes what is there."""

    def build(folder: Path) -> None:
        model = healthy()
        if place is not None:
            place(folder)
        point(largest(model), location if isinstance(location, str) else location(folder), **numbers)
        write(folder, model)

    FILES.add(name, build, exported, REFUSED)  # what is not there, or not whole, is missed where weights are needed


def _bytes(name: str, size: int = 4096) -> Place:
    def place(folder: Path) -> None:
        (folder / name).write_bytes(bytes(size))

    return place


_location("parent", f"../{OUTSIDE}/{SECRET}")
_location("parent_behind_a_folder", f"weights/../../{OUTSIDE}/{SECRET}", lambda folder: (folder / "weights").mkdir())
_location("parent_behind_a_dot", f"./.././{OUTSIDE}/{SECRET}")
_location("parent_with_backslashes", f"..\\{OUTSIDE}\\{SECRET}")
_location("parent_percent_encoded", f"..%2f{OUTSIDE}%2f{SECRET}", exported=ADMITTED)
_location("absolute", lambda folder: str(outside(folder)))
_location("absolute_with_two_slashes", lambda folder: "/" + str(outside(folder)))
_location("file_url", lambda folder: f"file://{outside(folder)}", exported=ADMITTED)
_location("drive_letter", "C:\\Windows\\win.ini")
_location("network_share", "\\\\server\\share\\weights")
_location("device", "/dev/zero")
_location("memory_of_the_process", "/proc/self/mem")
_location("home", "~/.ssh/id_rsa", exported=ADMITTED)
_location("zero_byte", f"weights\0../{OUTSIDE}/{SECRET}")
_location("empty", "")
_location("dot", ".", exported=ADMITTED)
_location("newlines", "weights\n\x1b[2J\r.bin", exported=ADMITTED)
_location("very_long", "w" * 100_000)
_location("many_folders", "w/" * 3000 + "w")
_location("missing", "weights.bin", exported=ADMITTED)
_location("folder", "weights", lambda folder: (folder / "weights").mkdir(), ADMITTED)
_location("fifo", "weights", lambda folder: os.mkfifo(folder / "weights"), ADMITTED)
_location("link_outside", "weights", lambda folder: (folder / "weights").symlink_to(outside(folder)))
_location("link_to_a_device", "weights", lambda folder: (folder / "weights").symlink_to("/dev/zero"))
_location("link_to_itself", "weights", lambda folder: (folder / "weights").symlink_to("weights"))
_location("linked_folder", f"w/{SECRET}", lambda folder: (folder / "w").symlink_to(outside(folder).parent))
_location("offset_behind_the_file", "w", _bytes("w"), ADMITTED, offset=10**15)
_location("offset_beyond_64_bits", "w", _bytes("w"), offset=2**80)
_location("negative_offset", "w", _bytes("w"), offset=-4096)
_location("offset_is_no_number", "w", _bytes("w"), offset="0x10")
_location("offset_of_digits_that_are_not_ascii", "w", _bytes("w"), offset="٤")
_location("offset_of_5000_digits", "w", _bytes("w"), offset="9" * 5000)
_location("negative_length", "w", _bytes("w"), length=-1)
_location("length_beyond_64_bits", "w", _bytes("w"), length=2**80)
_location("length_shorter_than_the_tensor", "w", _bytes("w"), ADMITTED, length=16)
_location("length_longer_than_the_tensor", "w", _bytes("w", 8192), ADMITTED, length=8000)
_location("truncated", "w", _bytes("w", 4095), ADMITTED)


def _address_in_memory(folder: Path) -> None:
    """What ONNX Runtime itself names memory by; the file is there, so that the path looks honest."""
    (folder / "*" / "_ORT_MEM_ADDR_").mkdir(parents=True)
    (folder / "*" / "_ORT_MEM_ADDR_" / "*").write_bytes(bytes(2**16))


_location("address_in_memory", "*/_ORT_MEM_ADDR_/*", _address_in_memory, offset=4096, length=4096)


@FILES.file()
def _constant_outside(folder: Path) -> None:
    """A Constant's own tensor, which ONNX's evaluator would read where the command runs."""
    model, tensor = healthy(), TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[8])
    point(tensor, f"../{OUTSIDE}/{SECRET}")
    model.graph.node.insert(0, node("Constant", [], ["outside"], value=tensor))
    write(folder, model)


@FILES.file(REFUSED_SITE, ANY)
def _attribute_tensor_where_the_command_runs(folder: Path) -> None:
    """A path inside the model's folder, of a file that is also in the command's own."""
    model, tensor = healthy(), TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[1])
    (folder / SECRET).write_bytes(bytes(4096))
    point(tensor, SECRET)
    shape = constant(model, "shape", [4])
    model.graph.node.insert(0, node("ConstantOfShape", [shape], ["filled"], value=tensor))
    maker(model, "mask").input[1] = "filled"
    write(folder, model)


@FILES.file(REFUSED_SITE, ANY)
def _constant_mask_where_the_command_runs(folder: Path) -> None:
    model, tensor = healthy(), TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[])
    (folder / SECRET).write_bytes(bytes(4096))
    point(tensor, SECRET)
    model.graph.node.insert(0, node("Constant", [], ["filled"], value=tensor))
    maker(model, "mask").input[1] = "filled"
    write(folder, model)


@FILES.file()
def _sparse_values_outside(folder: Path) -> None:
    model = healthy()
    values = helper.make_tensor("sparse", TensorProto.FLOAT, [2], [1.0, 2.0])
    indices = helper.make_tensor("at", TensorProto.INT64, [2], [0, 1])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [8]))
    point(model.graph.sparse_initializer[0].values, f"../{OUTSIDE}/{SECRET}")
    write(folder, model)


@FILES.file()
def _sparse_attribute_outside(folder: Path) -> None:
    model = healthy()
    values = helper.make_tensor("sparse", TensorProto.FLOAT, [2], [1.0, 2.0])
    indices = helper.make_tensor("at", TensorProto.INT64, [2], [0, 1])
    sparse = helper.make_sparse_tensor(values, indices, [8])
    point(sparse.values, f"../{OUTSIDE}/{SECRET}")
    model.graph.node.insert(0, node("Constant", [], ["outside"], sparse_value=sparse))
    write(folder, model)


@FILES.file()
def _training_weights_outside(folder: Path) -> None:
    model, tensor = healthy(), TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[8])
    point(tensor, f"../{OUTSIDE}/{SECRET}")
    info = model.training_info.add()
    info.algorithm.name = "training"
    info.algorithm.initializer.append(tensor)
    write(folder, model)


@FILES.file()
def _function_constant_outside(folder: Path) -> None:
    model, tensor = healthy(), TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[8])
    point(tensor, f"../{OUTSIDE}/{SECRET}")
    body = [node("Constant", [], ["c"], value=tensor), node("Identity", ["c"], ["y"])]
    model.functions.append(helper.make_function("own", "F", [], ["y"], body, [helper.make_opsetid("", 18)]))
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node.insert(0, node("F", [], ["outside"], domain="own"))
    write(folder, model)


@FILES.file(ADMITTED, ANY)
def _all_weights_overlap(folder: Path) -> None:
    model = healthy()
    (folder / "w").write_bytes(bytes(8192))
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) >= 1024:
            point(tensor, "w", offset=1)
    write(folder, model)


@FILES.file(ADMITTED, ANY)
def _the_model_is_its_own_weights(folder: Path) -> None:
    model = healthy()
    point(largest(model), "model.onnx")
    write(folder, model)


def _beside(name: str, file: str, content: object, exported: Codes = REFUSED, data: bytes | None = None) -> None:
    """A healthy model with a hostile file beside it; the folder is given."""

    def build(folder: Path) -> Path:
        (folder / "model.onnx").write_bytes(healthy_bytes())
        (folder / file).write_bytes(json.dumps(content).encode() if data is None else data)
        return folder

    FILES.add(name, build, exported)


_beside("config_of_brackets", "config.json", None, data=b"[" * 200_000)
_beside("config_of_objects", "config.json", None, data=b'{"a":' * 200_000)
_beside("config_of_nothing", "config.json", None, data=b"")
_beside("config_that_is_no_object", "config.json", [])
_beside("config_that_is_no_text", "config.json", None, data=b"\xff\xfe" * 100)
_beside("config_with_a_huge_number", "config.json", None, data=b'{"n_positions": ' + b"9" * 10_000 + b"}")
_beside("config_with_a_context_of_text", "config.json", {"n_positions": "\x1b[2J" * 100})
_beside("config_with_a_context_below_zero", "config.json", {"n_positions": -(10**30)})
_beside("config_with_nan", "config.json", None, data=b'{"n_positions": NaN}')
_beside("end_tokens_of_text", "generation_config.json", {"eos_token_id": ["a\nb"]})
_beside("end_tokens_a_million", "generation_config.json", {"eos_token_id": list(range(10**6))}, ADMITTED)
_beside("genai_decoder_outside", "genai_config.json", {"model": {"decoder": {"filename": f"../{OUTSIDE}/{SECRET}"}}})
_beside("genai_decoder_absolute", "genai_config.json", {"model": {"decoder": {"filename": "/dev/zero"}}})
_beside("genai_decoder_with_a_zero_byte", "genai_config.json", {"model": {"decoder": {"filename": "m\0n"}}})
_beside("genai_decoder_that_is_a_list", "genai_config.json", {"model": {"decoder": {"filename": ["model.onnx"]}}})
_beside("genai_of_nothing", "genai_config.json", {"model": 7})
_beside("manifest_of_nothing", "qbpass.json", {})
_beside("manifest_that_lies", "qbpass.json", {"schema_version": 1, "layout": "qb", "recipe": {}, "sites": []})
_beside("manifest_of_brackets", "qbpass.json", None, data=b"[" * 200_000)


@FILES.file()
def _config_link_outside(folder: Path) -> Path:
    (folder / "model.onnx").write_bytes(healthy_bytes())
    (folder / "config.json").symlink_to(outside(folder))
    return folder


@FILES.file()
def _tokenizer_link_outside(folder: Path) -> Path:
    (folder / "model.onnx").write_bytes(healthy_bytes())
    (folder / "tokenizer.json").symlink_to(outside(folder))
    return folder


@FILES.file()
def _model_link_outside(folder: Path) -> Path:
    """The folder is what the user named; the file in it is a stranger's link."""
    (folder / "model.onnx").symlink_to(outside(folder))
    return folder


@FILES.file(ADMITTED, ADMITTED)
def _config_fifo(folder: Path) -> Path:
    (folder / "model.onnx").write_bytes(healthy_bytes())
    os.mkfifo(folder / "config.json")
    return folder
