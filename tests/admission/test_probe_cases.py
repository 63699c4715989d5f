"""Cases are the distinct computing nodes that a graph really has, with shapes and kinds of values seen in calls."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graph_writer import GraphWriter
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from probe_cases import SPEC

from qbpass.admission.calls.call import Call
from qbpass.admission.dataflow import Flow
from qbpass.admission.probes.case import CASE, Case
from qbpass.admission.probes.collect import LeftOut, collect
from qbpass.admission.probes.core import QUERY_TO_BATCH, SHARED, core_cases
from qbpass.admission.probes.feeds import decoder_feeds
from qbpass.admission.probes.observe import CALLS, RunnableGraph, observe
from qbpass.admission.probes.sizes import Size, fit_size
from qbpass.admission.probes.weights import OWN_BYTES
from qbpass.models.freeze import freeze
from qbpass.models.loading import load_decoder
from qbpass.models.weight_sources import WeightSources

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
WHOLE = st.integers(-40, 40)


@given(rows=WHOLE, keys=WHOLE, fixed=WHOLE)
def test_a_length_that_is_a_sum_of_rows_and_keys_is_read_off_four_calls(rows: int, keys: int, fixed: int) -> None:
    size = Size(rows, keys, fixed)
    calls = [(call.queries, call.extent) for call in CALLS]
    assert fit_size([size.at(q, n) for q, n in calls], calls) == size


def test_a_length_that_is_no_such_sum_is_not_read() -> None:
    calls = [(call.queries, call.extent) for call in CALLS]
    assert fit_size([q * n for q, n in calls], calls) is None
    assert fit_size([5, 5, 5, 6], calls) is None


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (Size(1), "q"),
        (Size(-1, 1), "n-q"),
        (Size(3, 0, 1), "3q+1"),
        (Size(), "0"),
        (Size(0, 1, -1), "n-1"),
        (Size(0, 0, 7), "7"),
    ],
)
def test_sizes_are_written_in_rows_q_and_keys_n(size: Size, text: str) -> None:
    assert str(size) == text


def probed(writer: GraphWriter, folder: Path) -> tuple[dict[str, list[Case]], dict[str, LeftOut]]:
    """Cases by operator and kinds left out, of a graph over x (1, q, 6) and mask (1, n)."""

    def feeds(call: Call) -> Mapping[str, np.ndarray[Any, Any]]:
        random = np.random.default_rng(0)
        return {
            "x": random.standard_normal((1, call.queries, 6)).astype(np.float32),
            "mask": np.ones((1, call.extent), np.int64),
        }

    graph = RunnableGraph("test", writer.model(), WeightSources(folder), feeds)
    cases, left = collect(graph, observe(graph, SPEC))
    by_operator: dict[str, list[Case]] = {}
    for case in cases:
        by_operator.setdefault(case.operator, []).append(case)
    return by_operator, {kind.operator: kind for kind in left}


@pytest.fixture
def writer() -> GraphWriter:
    made = GraphWriter()
    made.input("x", FLOAT, 1, "q", 6)
    made.input("mask", INT64, 1, "n")
    return made


def test_equal_nodes_are_one_case_with_their_number(writer: GraphWriter, tmp_path: Path) -> None:
    weights = [writer.constant(np.full((6, 6), value), "float32") for value in (1, 2)]
    first = writer.node("MatMul", ["x", weights[0]], "a")
    writer.node("MatMul", [first, weights[1]], "b")
    writer.node("MatMul", ["b", writer.constant(np.ones((6, 4)), "float32")], "c")
    writer.output("c", FLOAT, 1, "q", 4)
    cases, _ = probed(writer, tmp_path)
    assert [case.count for case in cases["MatMul"]] == [2, 1]
    assert cases["MatMul"][0].describe() == {
        "dtypes": ["float", "float", "float"],
        "shapes": {"inputs": ["1,q,6", "*6,6"], "outputs": ["1,q,6"]},
    }


def test_single_constants_tell_cases_apart_since_kernels_look_at_them(writer: GraphWriter, tmp_path: Path) -> None:
    for name, exponent in (("a", 2), ("b", 3)):
        writer.node("Pow", ["x", writer.constant(exponent, "float32")], name)
        writer.output(name, FLOAT, 1, "q", 6)
    assert len(probed(writer, tmp_path)[0]["Pow"]) == 2


def test_what_moves_data_or_is_exact_is_no_case_and_the_rest_is_named(writer: GraphWriter, tmp_path: Path) -> None:
    writer.node("Transpose", ["x"], "turned", perm=[0, 2, 1])
    writer.node("Neg", ["turned"], "minus")
    writer.node("Add", ["mask", "mask"], "twice")
    writer.node("Exp", [writer.constant([1.0, 2.0], "float32")], "known")
    for name in ("minus", "known"):
        writer.outputs.append(helper.make_tensor_value_info(name, FLOAT, None))
    writer.outputs.append(helper.make_tensor_value_info("twice", INT64, None))
    cases, left = probed(writer, tmp_path)
    assert cases == {}
    assert "exact" in left["Add"].reason
    assert "same in every call" in left["Exp"].reason
    assert not {"Transpose", "Neg"} & left.keys()


def test_fused_attention_without_a_cache_is_left_out_where_a_row_alone_would_be_another(
    writer: GraphWriter, tmp_path: Path
) -> None:
    writer.node("Cast", ["mask"], "ones", to=FLOAT)
    writer.node("Unsqueeze", ["ones", writer.constant([2])], "column")
    writer.node("Expand", ["column", writer.constant([1, 1, 6])], "keys")  # (1, n, 6)
    for name, keys, flag in (("free", "keys", 0), ("causal", "keys", 1), ("own", "x", 0)):
        writer.node("MultiHeadAttention", ["x", keys, keys], name, "com.microsoft", num_heads=2, unidirectional=flag)
        writer.output(name, FLOAT, 1, "q", 6)
    cases, left = probed(writer, tmp_path)
    assert [case.where for case in cases["MultiHeadAttention"]] == ["free"]
    assert left["MultiHeadAttention"].count == 2
    assert "a row alone is another row" in left["MultiHeadAttention"].reason


def test_control_flow_is_left_out_by_name(writer: GraphWriter, tmp_path: Path) -> None:
    branch = helper.make_graph(
        [helper.make_node("Exp", ["x"], ["inner"])], "b", [], [helper.make_tensor_value_info("inner", FLOAT, None)]
    )
    writer.nodes.append(
        helper.make_node("If", [writer.constant(True, "bool")], ["y"], then_branch=branch, else_branch=branch)
    )
    writer.output("y", FLOAT, 1, "q", 6)
    cases, left = probed(writer, tmp_path)
    assert cases == {}
    assert "subgraphs" in left["If"].reason


def test_the_models_own_small_weights_are_used_and_large_ones_are_drawn(tmp_path: Path) -> None:
    rows = OWN_BYTES // 4 + 1
    small, large = np.arange(6, dtype=np.float32), np.zeros((1, rows), np.float32)
    nodes = [helper.make_node("Mul", ["x", "s"], ["a"]), helper.make_node("Add", ["w", "first"], ["b"])]
    nodes.insert(1, helper.make_node("ReduceSum", ["a", "axes"], ["first"], keepdims=1))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [1, "q", 6])],
        [helper.make_tensor_value_info("b", FLOAT, None)],
        [numpy_helper.from_array(v, n) for n, v in (("s", small), ("w", large), ("axes", np.array([2])))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    runnable = RunnableGraph(
        "test", model, WeightSources(tmp_path), lambda c: {"x": np.ones((1, c.queries, 6), np.float32)}
    )
    cases = {case.operator: case for case in collect(runnable, observe(runnable, SPEC))[0]}
    (own,) = cases["Mul"].weights
    assert own.value is not None
    assert own.value.tobytes() == small.tobytes()
    (drawn,) = cases["Add"].weights
    assert drawn.value is None
    assert drawn.array().any()  # the model's own are zeros
    assert drawn.array().tobytes() == drawn.array().tobytes()


def test_scalars_stay_scalars(writer: GraphWriter, tmp_path: Path) -> None:
    writer.node("Mul", ["x", writer.constant(3.0, "float32")], "y")
    writer.output("y", FLOAT, 1, "q", 6)
    ((case,),) = probed(writer, tmp_path)[0].values()
    (tensor,) = case.model().graph.initializer
    assert list(tensor.dims) == []


@pytest.fixture(scope="module")
def frozen(tiny_eager: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return freeze(load_decoder(tiny_eager), tmp_path_factory.mktemp("frozen") / "model", SPEC)


def test_a_decoders_attention_has_a_case_with_two_more_forms(frozen: Any) -> None:
    graph = RunnableGraph("frozen", frozen.model, frozen.weights, lambda call: decoder_feeds(frozen, call))
    (core,), left = core_cases(Flow.of(frozen), graph, observe(graph, SPEC))
    assert core.count == 3
    assert left == []
    assert set(core.forms) == {CASE, QUERY_TO_BATCH, SHARED}
    shared = [node.op_type for node in core.forms[SHARED]]
    assert "Expand" in [node.op_type for node in core.nodes]
    assert "Expand" not in shared  # K and V are not repeated over the group
    for form in core.forms:
        onnx.checker.check_model(_without_contrib(core.model(form)))


def _without_contrib(model: onnx.ModelProto) -> onnx.ModelProto:
    """The checker knows the standard operators alone."""
    for node in model.graph.node:
        if node.domain:
            node.op_type, node.domain = "MatMul", ""
            del node.attribute[:]
    return model


def test_every_form_of_a_core_computes_the_same_attention(frozen: Any) -> None:
    """Near, not to the bit: whether the bits agree is what probes ask."""
    from qbpass.admission.probes.trial import Run, Runner

    graph = RunnableGraph("frozen", frozen.model, frozen.weights, lambda call: decoder_feeds(frozen, call))
    (core,), _ = core_cases(Flow.of(frozen), graph, observe(graph, SPEC))
    runner, call = Runner(core, SPEC), core.draw(3, 9, np.random.default_rng(0))
    outputs = [next(iter(runner.outputs(Run((call,), form)).values())) for form in core.forms]
    assert outputs[0].std() > 0.01
    for other in outputs[1:]:
        assert other.shape == outputs[0].shape
        assert np.abs(other - outputs[0]).max() < 1e-5


def test_every_node_of_a_decoder_is_a_case_or_left_out_or_only_moves(frozen: Any) -> None:
    from qbpass.admission.probes.kinds import EXACT, MOVERS

    graph = RunnableGraph("frozen", frozen.model, frozen.weights, lambda call: decoder_feeds(frozen, call))
    cases, left = collect(graph, observe(graph, SPEC))
    computing = [node for node in frozen.model.graph.node if node.op_type not in MOVERS | EXACT]
    assert sum(case.count for case in cases) + sum(kind.count for kind in left) == len(computing)
    assert sum(case.count for case in cases) > 100
