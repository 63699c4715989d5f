"""The algebra and the oracle trace the same graph without knowing of each other; products are checked against ORT."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from qbpass.admission.strides.algebra import AlgebraTrace
from qbpass.admission.strides.elements import Elements, Ids, Product, UntracedError
from qbpass.admission.strides.operands import Memory
from qbpass.admission.strides.oracle import run_oracle
from qbpass.admission.strides.run_algebra import run_algebra

Shapes = dict[str, tuple[int, ...]]


class Graph:
    """Nodes over inputs, each call adding one; constants are inline."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def node(self, operator: str, inputs: list[str], domain: str = "", outputs: int = 1, **attributes: Any) -> str:
        names = [f"t{len(self.nodes)}.{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, domain=domain, **attributes))
        return names[0]

    def model(self, inputs: list[str], output: str) -> onnx.ModelProto:
        def values(names: list[str]) -> list[onnx.ValueInfoProto]:
            return [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]

        graph = helper.make_graph(self.nodes, "g", values(inputs), values([output]), self.constants)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def memories(shapes: Shapes) -> dict[str, Memory]:
    return {
        name: Memory.own(name, name, np.arange(np.prod(shape, dtype=np.int64)).reshape(shape))
        for name, shape in shapes.items()
    }


def traced(model: onnx.ModelProto, shapes: Shapes) -> tuple[Elements, dict[str, Ids], AlgebraTrace]:
    leaves = memories(shapes)
    elements, ids, values = run_oracle(model, leaves, {})
    return elements, ids, run_algebra(model, leaves, values, 4)


@st.composite
def layout_chains(draw: st.DrawFn) -> tuple[onnx.ModelProto, Shapes, str]:
    """A chain of up to six layout operations over one input."""
    graph = Graph()
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=4)))
    start, name, size = shape, "x", shape
    for _ in range(draw(st.integers(1, 6))):
        name, size = draw(st.sampled_from(_STEPS))(draw, graph, name, size)
    return graph.model(["x"], name), {"x": start}, name


def _transpose(draw: st.DrawFn, graph: Graph, name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    perm = draw(st.permutations(range(len(shape))))
    return graph.node("Transpose", [name], perm=perm), tuple(shape[axis] for axis in perm)


def _reshape(draw: st.DrawFn, graph: Graph, name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    at = draw(st.integers(0, len(shape)))
    new = (*shape[:at], 1, *shape[at:]) if draw(st.booleans()) else (int(np.prod(shape[:at])), int(np.prod(shape[at:])))
    written = list(new)
    if 0 not in new:
        written[draw(st.integers(0, len(new) - 1))] = -1
    return graph.node("Reshape", [name, graph.constant(written)], allowzero=1), new


def _repeat(draw: st.DrawFn, graph: Graph, name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    axis = draw(st.integers(0, len(shape)))
    wide = graph.node("Unsqueeze", [name, graph.constant([axis])])
    new = (*shape[:axis], 2, *shape[axis:])
    return graph.node("Expand", [wide, graph.constant(new)]), new


def _slice(draw: st.DrawFn, graph: Graph, name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    axis, step = draw(st.integers(0, len(shape) - 1)), draw(st.sampled_from((-2, -1, 1, 2)))
    start, end = (0, 1 << 40) if step > 0 else (1 << 40, -(1 << 40))
    new = (*shape[:axis], len(range(0, shape[axis], abs(step))), *shape[axis + 1 :])
    bounds = [graph.constant([value]) for value in (start, end, axis, step)]
    return graph.node("Slice", [name, *bounds]), new


def _gather(draw: st.DrawFn, graph: Graph, name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    axis = draw(st.integers(0, len(shape) - 1))
    if not shape[axis]:
        return name, shape
    rows = draw(st.lists(st.integers(0, shape[axis] - 1), min_size=1, max_size=3))
    new = (*shape[:axis], len(rows), *shape[axis + 1 :])
    return graph.node("Gather", [name, graph.constant(rows)], axis=axis), new


def _join(draw: st.DrawFn, graph: Graph, name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    axis = draw(st.integers(0, len(shape) - 1))
    return graph.node("Concat", [name, name], axis=axis), (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :])


def _halve(draw: st.DrawFn, graph: Graph, name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    axis = draw(st.integers(0, len(shape) - 1))
    cut = draw(st.integers(0, shape[axis]))
    first = graph.node("Split", [name, graph.constant([cut, shape[axis] - cut])], outputs=2, axis=axis)
    return first, (*shape[:axis], cut, *shape[axis + 1 :])


_STEPS = (_transpose, _reshape, _repeat, _slice, _gather, _join, _halve)


@settings(deadline=None)
@given(layout_chains())
def test_every_tensor_of_a_chain_of_layout_operations_has_the_same_elements_in_both_traces(
    chain: tuple[onnx.ModelProto, Shapes, str],
) -> None:
    model, shapes, _ = chain
    _, ids, algebra = traced(model, shapes)
    assert set(ids) == set(algebra.held)
    for name, numbers in ids.items():
        assert algebra.held[name].ids().tolist() == numbers.tolist(), name
    for operation in algebra.operations:
        assert operation.view.within_allocation
        assert operation.view.elements_aligned


@settings(deadline=None)
@given(layout_chains())
def test_a_copy_is_new_memory_and_has_the_bytes_of_its_result(chain: tuple[onnx.ModelProto, Shapes, str]) -> None:
    model, shapes, _ = chain
    _, ids, algebra = traced(model, shapes)
    for operation in algebra.operations:
        assert (operation.form == "copy") == (operation.view.allocation.name == operation.tensor)
        if operation.form == "copy":
            assert operation.nbytes == 4 * ids[operation.tensor].size
            assert operation.operator in ("Reshape", "Gather", "Concat")  # strides express all the others


def test_rows_written_into_a_cache_are_written_where_they_lie() -> None:
    graph = Graph()
    out = graph.node("ScatterND", ["cache", graph.constant([[2], [3]]), "rows"])
    elements, ids, algebra = traced(graph.model(["cache", "rows"], out), {"cache": (4, 2, 3), "rows": (2, 2, 3)})
    assert algebra.held[out].ids().tolist() == ids[out].tolist()
    assert algebra.held[out].view.allocation.name == "cache"
    (write,) = algebra.operations
    assert (write.form, write.nbytes, write.view.offset) == ("write", 48, 48)
    assert [record.root for record, _, _ in elements.grouped(ids[out].reshape(-1))] == ["cache", "rows"]


FLAGS = [
    dict(zip(("transA", "transB", "transBatchA", "transBatchB"), bits, strict=True))
    for bits in product((0, 1), repeat=4)
]


@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "".join(map(str, flags.values())))
def test_a_fused_product_reads_its_operands_as_ort_does(flags: dict[str, int]) -> None:
    """Small whole numbers, so that ORT's sums are exact; batch axes broadcast where neither operand is turned."""
    shapes = {
        "a": _operand_shape((2, 3), (4, 5), flags["transA"], flags["transBatchA"]),
        "b": _operand_shape((2, 3) if flags["transBatchB"] else (1, 3), (5, 6), flags["transB"], flags["transBatchB"]),
    }
    graph = Graph()
    out = graph.node("FusedMatMul", ["a", "b"], domain="com.microsoft", alpha=2.0, **flags)
    model = graph.model(["a", "b"], out)
    random = np.random.default_rng(0)
    feeds = {name: random.integers(-9, 9, shape).astype(np.float32) for name, shape in shapes.items()}
    (wanted,) = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    elements, ids, algebra = traced(model, shapes)
    for table, numbers in ((elements, ids[out]), (algebra.elements, algebra.held[out].ids())):
        assert numbers.shape == wanted.shape
        assert _evaluated(table, numbers, feeds).tolist() == wanted.reshape(-1).tolist()


def _operand_shape(batch: tuple[int, ...], matrix: tuple[int, int], trans: int, trans_batch: int) -> tuple[int, ...]:
    rows, columns = matrix[::-1] if trans else matrix
    return (rows, *batch, columns) if trans_batch else (*batch, rows, columns)


def _evaluated(elements: Elements, ids: Ids, feeds: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """The products' values, from nothing but what the trace recorded."""
    values = np.concatenate([[0.0], *(feeds[name].reshape(-1) for name in ("a", "b"))])  # leaves are numbered from 1
    found = np.empty(ids.size)
    for record, places, within in elements.grouped(ids.reshape(-1)):
        assert isinstance(record, Product)
        rows, columns = record.operands(within)
        found[places] = record.alpha * np.sum(values[rows] * values[columns], axis=-1)
    return found


def test_operands_of_a_product_are_walked_over_shared_axes_with_stride_zero() -> None:
    """QB's form: one matrix of keys for all rows of a group, read out of (n, Hkv, d) without a copy."""
    graph = Graph()
    out = graph.node("FusedMatMul", ["q", "k"], domain="com.microsoft", transB=1, transBatchB=1)
    _, _, algebra = traced(graph.model(["q", "k"], out), {"q": (2, 3, 4, 1, 8), "k": (7, 2, 1, 1, 8)})
    _, keys = algebra.operations
    assert keys.view.shape == (2, 3, 4, 8, 7)
    assert keys.view.strides == (32, 0, 0, 4, 64)
    assert keys.view.shared == (1, 2)
    assert keys.form == "view"


def doubled(graph: Graph, name: str, times: int) -> str:
    for _ in range(times):
        name = graph.node("Concat", [name, name], axis=0)
    return name


UNTRACED = [
    (lambda g: g.node("CumSum", ["x", g.constant(0)]), "holds a CumSum, of which it is not known what it reads"),
    (lambda g: g.node("Concat", ["x", g.constant([[1.0, 2.0, 3.0]], np.float32)], axis=0), "mixes traced elements"),
    (lambda g: g.node("ScatterND", ["x", g.constant([[0]]), g.constant([[1.0, 2.0, 3.0]])]), "mixes traced elements"),
    (lambda g: g.node("Mul", ["x", "x"]), "combines two traced tensors by Mul"),
    (lambda g: g.node("Softmax", ["x"], axis=0), "does not run over the last axis"),
    (lambda g: g.node("Gather", [g.constant(np.ones(9)), "x"]), "mixes traced elements"),
    (lambda g: g.node("MatMul", ["x", "x"]), "multiplies"),
]
TOO_LARGE = [
    (lambda g: g.node("Expand", ["x", g.constant([1 << 40, 1, 1])]), "more than 16,777,216 elements .* by a Expand"),
    (lambda g: g.node("Tile", ["x", g.constant([1 << 30, 1 << 30])]), "by a Tile"),
    (lambda g: g.node("Add", ["x", g.node("ConstantOfShape", [g.constant([1 << 40])])]), "by a ConstantOfShape"),
    (lambda g: doubled(g, "x", 40), "by a Concat"),
]


@pytest.mark.parametrize(("build", "reason"), [*UNTRACED, *TOO_LARGE])
def test_the_oracle_says_what_can_not_be_followed(build: Any, reason: str) -> None:
    graph = Graph()
    model = graph.model(["x"], build(graph))
    with pytest.raises(UntracedError, match=reason):
        run_oracle(model, memories({"x": (2, 3)}), {})


@pytest.mark.parametrize(("build", "reason"), UNTRACED)
def test_the_algebra_says_what_can_not_be_followed(build: Any, reason: str) -> None:
    graph = Graph()
    model = graph.model(["x"], build(graph))
    values = {constant.name: numpy_helper.to_array(constant) for constant in graph.constants}
    with pytest.raises(UntracedError, match=reason):
        run_algebra(model, memories({"x": (2, 3)}), values, 4)


def test_sizes_stay_sizes_beside_element_numbers() -> None:
    """Shape arithmetic uses Add and Mul, too: it must be computed, not recorded."""
    graph = Graph()
    rows = graph.node("Slice", [graph.node("Shape", ["x"]), graph.constant([0]), graph.constant([1])])
    doubled = graph.node("Mul", [rows, graph.constant([3])])
    shape = graph.node("Concat", [doubled, graph.constant([-1])], axis=0)
    out = graph.node("Reshape", ["x", shape])
    _, ids, algebra = traced(graph.model(["x"], out), {"x": (2, 3)})
    assert ids[out].shape == algebra.held[out].view.shape == (6, 1)
    assert doubled not in ids
