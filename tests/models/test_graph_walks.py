"""Walks through a graph give the nearest first, end, and know what a stored tensor's dims are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from qbpass.models.dataflow import LEAST_STEPS, WALK_LIMIT, Dataflow


def graph(body: str, inputs: str = "float[1,q] x", outputs: str = "float[1,q] y", more: str = "") -> onnx.GraphProto:
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18]> g ({inputs}) => ({outputs}) <{more}> {{ {body} }}'
    )
    return model.graph


HELD = "held = Constant <value = float[2,3] {1, 2, 3, 4, 5, 6}> ()"


@pytest.mark.parametrize(
    ("made", "dims"),
    [
        ("t = Identity (held)", [2, 3]),
        ("t = Cast <to = 10> (held)", [2, 3]),
        ("t = Transpose (held)", [3, 2]),
        ("t = Transpose <perm = [0, 1]> (held)", [2, 3]),
        ("t = Reshape (held, six)", [6]),
        ("t = Reshape (held, open)", None),
        ("t = Neg (held)", None),
    ],
)
def test_dims_of_a_stored_tensor_are_known_through_layout(made: str, dims: list[int] | None) -> None:
    flow = Dataflow(graph(f"{HELD} {made} y = Identity (x)", more="int64[1] six = {6}, int64[1] open = {-1}"))
    assert flow.weight_dims("t") == dims


def test_a_walk_gives_the_nearest_first_and_the_way_it_came() -> None:
    flow = Dataflow(graph("a = Neg (x) b = Abs (a) c = Relu (b) y = Add (c, a)"))
    steps = list(flow.steps("x", lambda *_: True))
    assert [step.node.op_type for step in steps] == ["Neg", "Abs", "Add", "Relu", "Add"]
    ways = [[node.op_type for node, _ in step.path()] for step in steps if step.node.op_type == "Add"]
    assert ways == [["Neg", "Add"], ["Neg", "Abs", "Relu", "Add"]]
    assert [step.operand for step in steps] == [0, 0, 1, 0, 0]


def test_a_walk_and_all_walks_together_end() -> None:
    nodes = [onnx.helper.make_node("Relu", [f"t{at}"], [f"t{at + 1}"]) for at in range(2 * WALK_LIMIT)]
    flow = Dataflow(onnx.GraphProto(node=nodes))
    most = (LEAST_STEPS + 2 * len(nodes)) // WALK_LIMIT
    for _ in range(most - 1):
        assert len(list(flow.steps("t0", lambda *_: True))) == WALK_LIMIT
    assert not flow.exhausted
    assert len(list(flow.backward(f"t{len(nodes)}", lambda *_: True))) == WALK_LIMIT
    while not flow.exhausted:
        list(flow.steps("t0", lambda *_: True))
    assert list(flow.steps("t0", lambda *_: True)) == []


def test_what_depends_on_a_size_alone_has_no_value_of_the_input() -> None:
    flow = Dataflow(graph("s = Shape (x) f = Cast <to = 1> (s) r = Neg (x) y = Add (r, f)"))
    assert flow.activations == {"x", "s", "f", "r", "y"}
    assert flow.values == {"x", "r", "y"}
    assert flow.inputs_of("f") == {"x"}


def test_a_body_that_captures_a_tensor_depends_on_it() -> None:
    body = (
        "<then_branch = b1 () => (float[1,q] t) { t = Neg (x) }, else_branch = b2 () => (float[1,q] e) { e = Abs (k) }>"
    )
    flow = Dataflow(graph(f"k = Constant <value_float = 1.0> () y = If (c) {body}", "float[1,q] x, bool c"))
    assert flow.dependents(["x"]) == {"x", "y"}
    assert flow.is_constant("k")
    assert not flow.is_constant("y")


def test_a_constant_whose_bytes_are_not_what_its_shape_needs_has_no_value() -> None:
    damaged = onnx.TensorProto(name="k", dims=[4], data_type=onnx.TensorProto.FLOAT, raw_data=np.float32(1).tobytes())
    flow = Dataflow(onnx.GraphProto(initializer=[damaged]))
    assert flow.constant("k") is None
