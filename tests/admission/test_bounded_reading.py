"""Reading a site has bounds: ways that double at each node, paths that would fill the memory, symbols that lie."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import pytest
from graph_writer import GraphWriter
from onnx import TensorProto
from site_graphs import Knobs, make_decoder

from qbpass.admission import admit, discover
from qbpass.admission.calls.call import CALLS
from qbpass.admission.dataflow import Flow
from qbpass.admission.extents import QUERY_ROWS
from qbpass.admission.mask_flow import bias_source, is_indicator
from qbpass.admission.path_map import PathError, index_map
from qbpass.models.errors import ModelFileError
from qbpass.models.interface import Interface

PLAIN = Interface("input_ids", "attention_mask", None, "logits", None, ())


def doubled(operator: str, levels: int = 60) -> Flow:
    """`w<levels>` reads its predecessor twice, and so on: 2**levels ways to a tensor of flags."""
    writer = GraphWriter()
    writer.input("flags", TensorProto.BOOL, 1, 1, "rows", "keys")
    name = writer.node("Cast", ["flags"], "w0", to=TensorProto.FLOAT)
    for level in range(levels):
        name = writer.node(operator, [name, name], f"w{level + 1}", **({"axis": -1} if operator == "Concat" else {}))
    writer.node("Mul", [name, writer.constant(-1e9, "float32")], "bias")
    return Flow(writer.model(), PLAIN)


@pytest.mark.parametrize("operator", ["Mul", "Min", "Max", "Concat"])
def test_ways_that_double_at_each_node_are_walked_once(operator: str) -> None:
    flow = doubled(operator)
    assert is_indicator("w60", flow)
    assert bias_source("bias", flow) is None
    assert bias_source("w60", flow) is not None


def moved(*nodes: tuple[str, Sequence[int]]) -> Flow:
    """Keys through operators that take sizes, one after the other; the last is `end`."""
    writer = GraphWriter()
    writer.input("keys", TensorProto.FLOAT, 1, 2, 3, 4)
    name = "keys"
    for number, (operator, sizes) in enumerate(nodes):
        name = writer.node(operator, [name, writer.constant(sizes)], f"m{number}")
    writer.node("Identity", [name], "end")
    return Flow(writer.model(), PLAIN)


@pytest.mark.parametrize(
    "nodes",
    [
        [("Expand", [2**20, 2**20, 1, 1, 1, 1])],
        [("Tile", [2**40, 1, 1, 1])],
        [("Tile", [2**10, 1, 1, 1]), ("Tile", [2**10, 1, 1, 1])],
        [("Reshape", [2**40, -1])],
    ],
    ids=["expanded", "tiled", "tiled twice", "reshaped to what it is not"],
)
def test_a_path_through_more_than_can_be_followed_has_no_map(nodes: list[tuple[str, Sequence[int]]]) -> None:
    with pytest.raises(PathError, match=r"'m\d' \(\w+\) fails or is too large"):
        index_map(moved(*nodes), "keys", "end", CALLS[0])


def test_a_path_that_starts_with_more_than_can_be_followed_has_no_map() -> None:
    writer = GraphWriter()
    writer.input("keys", TensorProto.FLOAT, 1, 2, 2**40, 4)
    writer.node("Identity", ["keys"], "end")
    with pytest.raises(PathError, match="starts from 8,796,093,022,208 elements"):
        index_map(Flow(writer.model(), PLAIN), "keys", "end", CALLS[0])


def test_a_path_within_bounds_has_its_map() -> None:
    found = index_map(moved(("Tile", [1, 2, 1, 1]), ("Reshape", [1, 4, 12])), "keys", "end", CALLS[0])
    assert np.array_equal(found.reshape(-1), [*range(24), *range(24)])


@pytest.mark.parametrize("name", ["queries", "past", "1", "cls", "self", "terms"])
def test_a_symbol_called_like_a_number_of_rows_is_none(name: str) -> None:
    writer = GraphWriter()
    writer.input("input_ids", TensorProto.INT64, 1, "rows")
    writer.input("strange", TensorProto.FLOAT, 1, name)
    writer.node("Identity", ["strange"], "copy")
    flow = Flow(writer.model(), PLAIN)
    extent = flow.extent("copy", 1)
    assert extent is not None
    assert extent.at(2, 5) is None
    assert extent != QUERY_ROWS
    assert flow.extent("input_ids", 1) == QUERY_ROWS


def test_heads_of_0_are_no_heads() -> None:
    decoder = make_decoder()
    for value in (*decoder.model.graph.input, *decoder.model.graph.output, *decoder.model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_value = 0
    (site,) = admit(decoder).sites
    assert [diagnostic.code for diagnostic in site.diagnostics] == ["UNKNOWN_SHAPE"]


def test_a_graph_of_more_attentions_than_any_model_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # The package gives the function the module's name.
    monkeypatch.setattr(sys.modules["qbpass.admission.discover"], "MAX_ATTENTIONS", 3)
    assert len(discover(make_decoder(Knobs(sites_per_pair=3)))) == 3
    with pytest.raises(ModelFileError, match="more than 3 attentions"):
        discover(make_decoder(Knobs(sites_per_pair=4)))
