"""Freezing writes the weights that the optimizer made or changed, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tiny_graphs import feeds, save, tiny_decoder

from qbpass.models import kept_weights
from qbpass.models.decoder import Decoder
from qbpass.models.external_data import external_entry, external_tensors, set_external_entry
from qbpass.models.freeze import freeze
from qbpass.models.loading import load_decoder
from qbpass.models.session import SessionSpec, open_session
from qbpass.models.weight_sources import weight_files

SPEC = SessionSpec(threads=1)
LAYERS = 2


def transposed_head(model: onnx.ModelProto, count: int = 1) -> onnx.ModelProto:
    """The head (hidden, vocabulary) is stored transposed, as torch stores it, for the optimizer to fold; so are `count`
    - 1 other weights.
    """
    for name in ["head", *(f"wo.{layer}" for layer in range(LAYERS))][:count]:
        tensor = next(t for t in model.graph.initializer if t.name == name)
        stored = numpy_helper.from_array(np.ascontiguousarray(numpy_helper.to_array(tensor).T), f"{name}.stored")
        tensor.CopyFrom(stored)
        node = next(node for node in model.graph.node if name in node.input)
        place = next(i for i, other in enumerate(model.graph.node) if other is node or other == node)
        turned = onnx.helper.make_node("Transpose", [stored.name], [name], perm=[1, 0])
        model.graph.node.insert(place, turned)
    return model


def decoder_of(model: onnx.ModelProto, folder: Path, **how: Any) -> Decoder:
    return load_decoder(save(model, folder, **{"external": True, **how}))


def written(frozen: Decoder) -> list[str]:
    return sorted(path.name for path in frozen.folder.iterdir())


def bytes_of(frozen: Decoder) -> list[bytes]:
    session = open_session(frozen.path, SPEC, weights=frozen.weights)
    first = session.run(None, feeds(LAYERS, [3, 1, 4, 1, 5]))
    return [np.asarray(array).tobytes() for array in (*first, *session.run(None, feeds(LAYERS, [9], first[1:])))]


def test_no_weight_is_written_where_the_optimizer_changed_none(tmp_path: Path) -> None:
    source = decoder_of(tiny_decoder(LAYERS), tmp_path / "source")
    frozen = freeze(source, tmp_path / "frozen", SPEC)
    assert written(frozen) == ["reference.onnx"]
    assert frozen.elsewhere == {"model.onnx.data": source.folder.resolve()}
    assert weight_files(frozen.model, frozen.weights) == weight_files(source.model, source.weights)


def test_changed_weights_alone_are_written(tmp_path: Path) -> None:
    source = decoder_of(transposed_head(tiny_decoder(LAYERS), 3), tmp_path / "source")
    frozen = freeze(source, tmp_path / "frozen", SPEC)
    assert written(frozen) == ["reference.data", "reference.onnx"]
    own = {
        t.name: external_entry(t) for t in external_tensors(frozen.model) if external_entry(t)[0] == "reference.data"
    }
    assert len(own) == 3
    size = (frozen.folder / "reference.data").stat().st_size
    assert size == max(offset + length for _, offset, length in own.values())
    assert size < sum(length for *_, length in own.values()) + len(own) * 4096


@pytest.mark.parametrize("changed", [0, 1, 3])
def test_the_bytes_are_those_of_a_copy_and_of_the_default_session(changed: int, tmp_path: Path) -> None:
    source = decoder_of(transposed_head(tiny_decoder(LAYERS), changed), tmp_path / "source")
    pointing = freeze(source, tmp_path / "pointing", SPEC)
    copied = freeze(source, tmp_path / "copied", SPEC, copy_weights=True)
    default = open_session(source.path, SPEC, optimize=True).run(None, feeds(LAYERS, [3, 1, 4, 1, 5]))
    assert copied.elsewhere == {}
    assert bytes_of(pointing) == bytes_of(copied)
    assert bytes_of(pointing)[: len(default)] == [np.asarray(array).tobytes() for array in default]


def test_a_weight_is_found_under_another_name_and_shape(tmp_path: Path) -> None:
    """The optimizer folds a Reshape of a weight into a new one, whose bytes are the old one's."""
    model = tiny_decoder(LAYERS)
    head = next(t for t in model.graph.initializer if t.name == "head")
    rows, columns = head.dims
    head.name = "head.flat"
    del head.dims[:]
    head.dims.append(rows * columns)
    model.graph.initializer.append(numpy_helper.from_array(np.array([rows, columns]), "head.shape"))
    model.graph.node.insert(
        len(model.graph.node) - 1, onnx.helper.make_node("Reshape", ["head.flat", "head.shape"], ["head"])
    )
    source = decoder_of(model, tmp_path / "source")
    frozen = freeze(source, tmp_path / "frozen", SPEC)
    assert "head.flat" not in {tensor.name for tensor in frozen.model.graph.initializer}
    assert written(frozen) == ["reference.onnx"]
    assert bytes_of(frozen) == bytes_of(freeze(source, tmp_path / "copied", SPEC, copy_weights=True))


def test_a_weight_of_another_name_is_found_at_cache_lines_alone(tmp_path: Path) -> None:
    """There ONNX Runtime keeps those that it makes; a weight of the same name it maps where the user has it."""
    source = decoder_of(tiny_decoder(LAYERS), tmp_path / "source")
    data = source.folder / "model.onnx.data"
    data.write_bytes(b"1234" + data.read_bytes())
    for tensor in external_tensors(source.model):
        location, offset, length = external_entry(tensor)
        set_external_entry(tensor, location, offset + 4, length)
    user = kept_weights._UserFiles(source)
    tensor = next(external_tensors(source.model))
    entry = kept_weights._Range(*external_entry(tensor))
    assert entry.offset % 64 == 4
    assert user.find(tensor.name, data, entry) == entry
    assert user.find("made by the optimizer", data, entry) is None


def test_weights_inside_the_users_file_are_written(tmp_path: Path) -> None:
    source = decoder_of(tiny_decoder(LAYERS), tmp_path / "source", external=False)
    frozen = freeze(source, tmp_path / "frozen", SPEC)
    assert written(frozen) == ["reference.data", "reference.onnx"]
    assert frozen.elsewhere == {}


def renamed(source: Decoder, name: str) -> Decoder:
    """The decoder with its weights in a file of that name."""
    (source.folder / "model.onnx.data").rename(source.folder / name)
    model = onnx.load(source.path, load_external_data=False)
    for tensor in external_tensors(model):
        set_external_entry(tensor, name, *external_entry(tensor)[1:])
    source.path.write_bytes(model.SerializeToString())
    return load_decoder(source.path)


def test_a_users_file_may_be_called_as_ours(tmp_path: Path) -> None:
    source = renamed(decoder_of(transposed_head(tiny_decoder(LAYERS)), tmp_path / "source"), "reference.data")
    frozen = freeze(source, tmp_path / "frozen", SPEC)
    assert written(frozen) == ["reference.1.data", "reference.onnx"]
    assert frozen.elsewhere == {"reference.data": source.folder.resolve()}
    assert bytes_of(frozen) == bytes_of(freeze(source, tmp_path / "copied", SPEC, copy_weights=True))


@pytest.mark.parametrize("copy", [False, True])
def test_freezing_into_the_models_own_folder_leaves_its_weights_alone(copy: bool, tmp_path: Path) -> None:
    source = renamed(decoder_of(transposed_head(tiny_decoder(LAYERS)), tmp_path / "source"), "reference.data")
    before = (source.folder / "reference.data").read_bytes()
    frozen = freeze(source, source.folder, SPEC, copy_weights=copy)
    assert (source.folder / "reference.data").read_bytes() == before
    assert bytes_of(frozen) == bytes_of(freeze(source, tmp_path / "apart", SPEC))


def test_weights_that_begin_alike_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A square weight and what the optimizer transposes it to: of one length, and here of one beginning, too."""
    monkeypatch.setattr(kept_weights, "_HEAD", 64)
    model = tiny_decoder(LAYERS)
    tensor = next(t for t in model.graph.initializer if t.name == "wo.0")
    square = numpy_helper.to_array(tensor).copy()
    square += square.T
    square[-1, -2] += 1
    tensor.CopyFrom(numpy_helper.from_array(square, "wo.0"))
    source = decoder_of(transposed_head(model, 2), tmp_path / "source")
    frozen = freeze(source, tmp_path / "frozen", SPEC)
    assert bytes_of(frozen) == bytes_of(freeze(source, tmp_path / "copied", SPEC, copy_weights=True))


def test_a_large_range_is_compared_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_weights, "_CHUNK", 1000)
    one, other = tmp_path / "one", tmp_path / "other"
    data = np.random.default_rng(0).bytes(10_000)
    one.write_bytes(data)
    other.write_bytes(b"xyz" + data)
    assert kept_weights.same_bytes(one, 0, other, 3, 10_000)
    assert not kept_weights.same_bytes(one, 0, other, 3, 10_001)  # a file that ends within
    for place in (0, 999, 1000, 9_999):
        changed = bytearray(b"xyz" + data)
        changed[3 + place] ^= 1
        other.write_bytes(bytes(changed))
        assert not kept_weights.same_bytes(one, 0, other, 3, 10_000)


@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_what_is_kept_is_moved_to_the_front_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(kept_weights, "_CHUNK", chunk)
    monkeypatch.setattr(kept_weights, "_ALIGNMENT", 16)
    data = tmp_path / "all.data"
    content = np.random.default_rng(0).bytes(1000)
    data.write_bytes(content)
    ranges = [(3, 50), (40, 13), (100, 300), (410, 64), (990, 10)]
    model = onnx.ModelProto()
    for place, (offset, length) in enumerate(ranges):
        tensor = model.graph.initializer.add(name=str(place), data_location=onnx.TensorProto.EXTERNAL)
        set_external_entry(tensor, "all.data", offset, length)
    rest = [(kept_weights._Range(*external_entry(t)), t) for t in model.graph.initializer if t.name != "1"]
    kept_weights._cut_together(data, rest, "own.data")
    moved = data.read_bytes()
    for entry, tensor in rest:
        location, offset, length = external_entry(tensor)
        assert location == "own.data"
        assert moved[offset : offset + length] == content[entry.offset : entry.offset + entry.length]
    assert len(moved) < 450
