"""Nodes that must be run together so that a call's rows can be run apart, and those whose rows can't be."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from site_graphs import Knobs, make_decoder

from qbpass.admission.dataflow import Flow
from qbpass.admission.row_units.rows import Unsplittable, row_axis
from qbpass.admission.row_units.unit import MOST_NODES, RowUnit, row_unit

ROWS = "logits"  # (1, q, vocabulary): nodes are added behind it


def flow_with(*nodes: onnx.NodeProto, outputs: tuple[str, ...] = ()) -> Flow:
    """A decoder with nodes behind its logits. Constants: `one` (1,), `flat` [-1], `eight` (vocabulary, 8) int8."""
    decoder = make_decoder(Knobs())
    graph = decoder.model.graph
    eight = np.ones((decoder.contract.vocab_size, 8), np.int8)
    constants = {"one": np.ones(1, np.float32), "flat": np.array([-1]), "eight": eight}
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    graph.node.extend(nodes)
    graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs)
    return Flow.of(decoder)


def node(operator: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


QUANTIZE = node("DynamicQuantizeLinear", ROWS, "small scale zero")


def unit_of(flow: Flow, seed: str) -> RowUnit:
    return row_unit(flow, flow.node(seed))


def test_a_node_whose_operands_and_results_hold_rows_is_a_unit_of_its_own() -> None:
    flow = flow_with(node("Mul", f"{ROWS} one", "scaled"), outputs=("scaled",))
    assert unit_of(flow, "scaled") == RowUnit("scaled", ("scaled",), ((ROWS, 1),), ("one",), (("scaled", 1),))


def test_whoever_reads_a_scale_of_all_rows_is_run_with_the_quantizer() -> None:
    chain = (
        QUANTIZE,
        node("MatMulInteger", "small eight zero", "sums"),
        node("Cast", "sums", "floats", to=TensorProto.FLOAT),
        node("Mul", "scale one", "both"),
        node("Mul", "floats both", "product"),
        node("Neg", "product", "after"),
    )
    flow = flow_with(*chain, outputs=("after",))
    unit = unit_of(flow, "small")
    assert unit.nodes == ("small", "sums", "floats", "both", "product")
    assert (unit.rows, unit.shared, unit.results) == (((ROWS, 1),), ("eight", "one"), (("product", 1),))
    assert unit_of(flow, "product").nodes == unit.nodes, "whichever node it is made around"


def test_every_product_behind_one_quantizer_is_in_its_unit() -> None:
    readers = [node("DequantizeLinear", "small scale zero", f"back{number}") for number in range(3)]
    flow = flow_with(QUANTIZE, *readers, outputs=("back0", "back1", "back2"))
    assert unit_of(flow, "small").results == (("back0", 1), ("back1", 1), ("back2", 1))


def test_a_scale_spelled_out_couples_rows_as_the_operator_does() -> None:
    spelled = (
        node("Abs", ROWS, "sizes"),
        node("ReduceMax", "sizes", "largest", keepdims=0),
        node("Div", f"{ROWS} largest", "steps"),
        node("Round", "steps", "rounded"),
        node("Mul", "rounded largest", "again"),
    )
    flow = flow_with(*spelled, outputs=("again",))
    assert unit_of(flow, "largest").nodes == ("largest", "steps", "rounded", "again")


UNSPLITTABLE: dict[str, tuple[tuple[onnx.NodeProto, ...], tuple[str, ...], str]] = {
    "rows and width as one axis": (
        (
            node("Reshape", f"{ROWS} flat", "line"),
            node("DynamicQuantizeLinear", "line", "small scale zero"),
            node("DequantizeLinear", "small scale zero", "back"),
        ),
        ("back",),
        "no axis of 'small' holds the rows alone",
    ),
    "a scale that leaves the graph": (
        (QUANTIZE, node("DequantizeLinear", "small scale zero", "back")),
        ("back", "scale"),
        "'scale' leaves the graph without rows",
    ),
    "a scale that a whole network reads": (
        (
            QUANTIZE,
            node("Neg", "scale", "s0"),
            *(node("Neg", f"s{number}", f"s{number + 1}") for number in range(MOST_NODES)),
            node("Mul", f"{ROWS} s{MOST_NODES}", "back"),
        ),
        ("back",),
        f"more than {MOST_NODES} nodes would have to be run together",
    ),
}


@pytest.mark.parametrize("name", UNSPLITTABLE)
def test_rows_that_can_not_be_told_apart_are_refused_with_the_reason(name: str) -> None:
    nodes, outputs, reason = UNSPLITTABLE[name]
    flow = flow_with(*nodes, outputs=outputs)
    with pytest.raises(Unsplittable, match=reason):
        unit_of(flow, "small")


def test_no_unit_holds_a_node_of_an_attention() -> None:
    flow = flow_with(QUANTIZE, node("DequantizeLinear", "small scale zero", "back"), outputs=("back",))
    with pytest.raises(Unsplittable, match="'back' is part of an attention or of other nodes"):
        row_unit(flow, flow.node("small"), {"back"})


def test_a_unit_with_a_body_is_refused() -> None:
    body = helper.make_graph(
        [helper.make_node("Neg", [ROWS], ["turned"])],
        "b",
        [],
        [helper.make_tensor_value_info("turned", TensorProto.FLOAT, None)],
    )
    decide = helper.make_node("If", ["yes"], ["out"], then_branch=body, else_branch=body)
    decoder = make_decoder(Knobs())
    decoder.model.graph.initializer.append(helper.make_tensor("yes", TensorProto.BOOL, [], [True]))
    shape = decoder.model.graph.output[0].type
    decoder.model.graph.node.append(decide)
    decoder.model.graph.output.append(onnx.ValueInfoProto(name="out", type=shape))
    flow = Flow.of(decoder)
    with pytest.raises(Unsplittable, match="'out' holds subgraphs"):
        unit_of(flow, "out")


def test_the_axis_of_rows_is_read_off_calls_of_several_sizes() -> None:
    flow = flow_with()
    assert row_axis(flow, ROWS) == 1
    assert row_axis(flow, "one") is None
    with pytest.raises(Unsplittable, match=r"no axis of 'present\.0\.key' holds the rows alone"):
        row_axis(flow, "present.0.key")
