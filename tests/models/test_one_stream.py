"""One stream: an open batch is declared to be 1, and nothing else of a graph changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny_graphs import feeds, save, tiny_decoder

from qbpass.models.digests import graph_digest
from qbpass.models.find_interface import find_interface
from qbpass.models.freeze import SOURCE_KEY, freeze
from qbpass.models.graph_io import read_graph
from qbpass.models.loading import load_decoder, load_graph
from qbpass.models.one_stream import pin_batch
from qbpass.models.session import SessionSpec, open_session
from qbpass.models.weight_digests import weight_digests

SPEC = SessionSpec(threads=1)
LAYERS = 2


def batched(symbol: str = "batch", form: str = "decomposed") -> onnx.ModelProto:
    """The tiny decoder with an open batch in every input and output, and in one inner declaration."""
    model = tiny_decoder(LAYERS, form)
    for v in (*model.graph.input, *model.graph.output):
        v.type.tensor_type.shape.dim[0].dim_param = symbol
    model.graph.value_info.append(
        onnx.helper.make_tensor_value_info(model.graph.node[0].output[0], 1, [symbol, "q", 32])
    )
    return model


def first_dims(model: onnx.ModelProto) -> list[int | str]:
    dims = [v.type.tensor_type.shape.dim[0] for v in (*model.graph.input, *model.graph.output, *model.graph.value_info)]
    return [dim.dim_param or dim.dim_value for dim in dims]


def test_every_occurrence_of_the_batch_becomes_1_and_no_node_changes() -> None:
    model = batched()
    nodes = [node.SerializeToString() for node in model.graph.node]
    pin_batch(model, find_interface(model))
    assert set(first_dims(model)) == {1}
    assert [node.SerializeToString() for node in model.graph.node] == nodes
    assert model.graph.input[0].type.tensor_type.shape.dim[1].dim_param == "q"


def test_a_batch_without_a_name_becomes_1_and_a_fixed_one_stays() -> None:
    model = batched("")
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 4
    pin_batch(model, find_interface(model))
    assert first_dims(model)[:3] == [1, 4, 1]


def test_a_symbol_that_is_also_a_length_is_no_batch() -> None:
    model = batched("q")
    pin_batch(model, find_interface(model))
    assert set(first_dims(model)) == {"q"}


def test_an_axis_that_is_no_batch_is_left_open() -> None:
    """Heads folded into axis 0 of a rank-3 cache, say: only caches of rank 4 have their batch there."""
    model = batched()
    for v in model.graph.input:
        if v.name == "past.0.key":
            del v.type.tensor_type.shape.dim[3]
            v.type.tensor_type.shape.dim[0].dim_param = "batch_x_heads"
    pin_batch(model, find_interface(model))
    assert next(v for v in model.graph.input if v.name == "past.0.key").type.tensor_type.shape.dim[0].dim_param


@pytest.mark.parametrize("form", ["decomposed", "gqa", "onnx"])
def test_freezing_optimizes_the_file_as_it_is_and_declares_one_stream_afterwards(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(batched(form=form), tmp_path / "source", external=True)
    pinned = freeze(load_decoder(path), tmp_path / "pinned", SPEC)
    monkeypatch.setattr("qbpass.models.freeze.pin_batch", lambda *_: None)
    open_ = freeze(load_decoder(path), tmp_path / "open", SPEC)
    assert [n.SerializeToString() for n in pinned.model.graph.node] == [
        n.SerializeToString() for n in open_.model.graph.node
    ]
    assert weight_digests(pinned.model, pinned.weights) == weight_digests(open_.model, open_.weights)
    assert first_dims(pinned.model)[0] == 1
    assert first_dims(open_.model)[0] == "batch"


def test_the_frozen_graph_gives_the_files_own_bytes_and_refuses_a_second_stream(tmp_path: Path) -> None:
    decoder = load_decoder(save(batched(form="gqa"), tmp_path / "source", external=True))
    assert first_dims(decoder.model)[0] == 1
    frozen = freeze(decoder, tmp_path / "frozen", SPEC)
    one = feeds(LAYERS, [3, 1, 4])
    two = {name: np.repeat(array, 2, axis=0) for name, array in one.items()}
    source, session = (
        open_session(decoder.path, SPEC, optimize=True),
        open_session(frozen.path, SPEC, weights=frozen.weights),
    )
    assert [a.tobytes() for a in session.run(None, one)] == [a.tobytes() for a in source.run(None, one)]
    assert source.run(None, two)[0].shape[0] == 2
    with pytest.raises(Exception, match="invalid dimensions"):  # one of ONNX Runtime's private types
        session.run(None, two)


def test_the_frozen_graph_names_its_source_as_the_file_was(tmp_path: Path) -> None:
    path = save(batched(), tmp_path / "source")
    frozen = freeze(load_decoder(path), tmp_path / "frozen", SPEC)
    notes = {entry.key: entry.value for entry in frozen.model.metadata_props}
    assert notes[SOURCE_KEY] == graph_digest(read_graph(path))
    assert notes[SOURCE_KEY] != graph_digest(load_graph(path).model)
