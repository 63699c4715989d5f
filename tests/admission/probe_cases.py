"""Cases whose answers are known on every machine: what differs in them differs by what they compute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qbpass.admission.probes.case import CASE, Case, Operand, Result, Weight
from qbpass.admission.probes.core import NAME, with_forms
from qbpass.admission.probes.falsify import Bench
from qbpass.admission.probes.fills import NORMAL, Fill
from qbpass.admission.probes.probe import Settings
from qbpass.admission.probes.sizes import Size
from qbpass.admission.probes.store import Store, as_plain
from qbpass.admission.site import AttentionSite, SiteNodes
from qbpass.models.decoder import Decoder
from qbpass.models.loading import load_graph
from qbpass.models.recipe import machine_facts
from qbpass.models.session import SessionSpec

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
SPEC = SessionSpec(threads=1)
Q, N, PAST = Size(rows=1), Size(keys=1), Size(rows=-1, keys=1)


def dims(*parts: Size | int) -> tuple[Size, ...]:
    return tuple(part if isinstance(part, Size) else Size(fixed=part) for part in parts)


def operand(name: str, *parts: Size | int, fill: Fill = NORMAL) -> Operand:
    return Operand(name, FLOAT, dims(*parts), fill)


def result(name: str, *parts: Size | int) -> Result:
    return Result(name, FLOAT, dims(*parts))


def ints(name: str, *values: int) -> Weight:
    return Weight(name, INT64, (len(values),), value=np.array(values, np.int64))


def case_of(
    nodes: list[onnx.NodeProto],
    operands: list[Operand],
    results: list[Result],
    weights: tuple[Weight, ...] = (),
    **rest: object,
) -> Case:
    forms = {CASE: tuple(nodes)}
    return Case(nodes[0].op_type, "", forms, tuple(operands), weights, tuple(results), {"": 18}, **rest)  # type: ignore[arg-type]


def shifted() -> Case:
    """x + 1, element by element: no row knows of another."""
    node = helper.make_node("Add", ["x", "one"], ["y"])
    one = Weight("one", FLOAT, (), value=np.array(1, np.float32))
    return case_of([node], [operand("x", 1, Q, 6)], [result("y", 1, Q, 6)], (one,))


def coupled() -> Case:
    """x over the largest value of the whole tensor: one scale for all rows."""
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=1),
        helper.make_node("Div", ["x", "top"], ["y"]),
    ]
    return case_of(nodes, [operand("x", 1, Q, 6)], [result("y", 1, Q, 6)])


def placed() -> Case:
    """Sums over the rows up to a row: equal rows have other sums at other places."""
    axis = Weight("axis", INT64, (), value=np.array(1, np.int64))
    node = helper.make_node("CumSum", ["x", "axis"], ["y"])
    return case_of([node], [operand("x", 1, Q, 6)], [result("y", 1, Q, 6)], (axis,))


def longest_only() -> Case:
    """1 at the largest of a row's n values: whatever lies behind the row's own keys counts."""
    node = helper.make_node("Hardmax", ["x"], ["y"], axis=-1)
    return case_of([node], [operand("x", 1, Q, N)], [result("y", 1, Q, N)])


def counting_cache() -> Case:
    """New rows behind the past, and each new row plus the number of all rows: a block's rows see the block's number."""
    nodes = [
        helper.make_node("Concat", ["past", "new"], ["present"], axis=1),
        helper.make_node("Shape", ["present"], ["shape"], start=1, end=2),
        helper.make_node("Cast", ["shape"], ["count"], to=FLOAT),
        helper.make_node("Add", ["new", "count"], ["y"]),
    ]
    operands = [operand("new", 1, Q, 4), operand("past", 1, PAST, 4)]
    return case_of(nodes, operands, [result("y", 1, Q, 4), result("present", 1, N, 4)], carried={"past": "present"})


def bench(folder: Path, *, fresh: bool = False, witnesses: Path | None = None, spec: SessionSpec = SPEC) -> Bench:
    """A bench whose cache is `folder`, for blocks of up to 3 rows."""
    machine = as_plain(machine_facts(spec))
    return Bench(spec, machine, Store(folder, fresh), witnesses or folder / "witnesses", Settings(queries=3))


def tops() -> Case:
    """The largest of a row's n values: a tail of -inf does not count, any other might."""
    node = helper.make_node("ReduceMax", ["x", "axes"], ["y"], keepdims=0)
    return case_of([node], [operand("x", 1, Q, N)], [result("y", 1, Q)], (ints("axes", 2),))


def reshaped() -> Case:
    """x + x in a shape that the call brings, its number of rows among it."""
    counts = Fill(kind="affine", table=((0, 0, 2), (3, 0, 0)))
    shape = Operand("shape", INT64, dims(2), counts)
    nodes = [helper.make_node("Add", ["x", "x"], ["z"]), helper.make_node("Reshape", ["z", "shape"], ["y"])]
    return case_of(nodes, [operand("x", 2, Q, 3), shape], [Result("y", FLOAT, (Size(fixed=2), Size(rows=3)))])


def small_decoder(folder: Path) -> Decoder:
    """input_ids -> logits and whether they are numbers (IsNaN: not every provider has it). Written to `folder`."""
    random = np.random.default_rng(0)
    weights = {"table": random.standard_normal((11, 8)), "head": random.standard_normal((8, 11))}
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"]),
        helper.make_node("MatMul", ["x", "head"], ["logits"]),
        helper.make_node("IsNaN", ["logits"], ["bad"]),
    ]
    constants = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("input_ids", INT64, [1, "q"])],
        [
            helper.make_tensor_value_info("logits", FLOAT, [1, "q", 11]),
            helper.make_tensor_value_info("bad", TensorProto.BOOL, [1, "q", 11]),
        ],
        constants,
    )
    folder.mkdir(parents=True, exist_ok=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return load_graph(folder / "model.onnx")


def grouped_core(heads: int = 4, kv_heads: int = 2, width: int = 16) -> Case:
    """Attention as exporters write it, K and V repeated over the group, with both forms of queries as batch entries."""
    group = heads // kv_heads
    nodes = [
        *_repeated("k", "kr"),
        helper.make_node("Transpose", ["kr"], ["kt"], perm=[0, 1, 3, 2]),
        *_repeated("v", "vr"),
        helper.make_node("MatMul", ["q", "kt"], ["s"]),
        helper.make_node("Mul", ["s", "scale"], ["t"]),
        helper.make_node("Add", ["t", "m"], ["u"]),
        helper.make_node("Softmax", ["u"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "vr"], ["y"]),
    ]
    lowest = float(np.finfo(np.float32).min)
    mask = operand("m", 1, 1, Q, N, fill=Fill(kind="mask", low=lowest))
    operands = [
        operand("q", 1, heads, Q, width),
        operand("k", 1, kv_heads, N, width),
        operand("v", 1, kv_heads, N, width),
    ]
    scale = Weight("scale", FLOAT, (), value=np.array(width**-0.5, np.float32))
    shapes = (ints("axis", 2), ints("group", 1, 1, group, 1, 1), ints("rows", 1, heads, -1, width), scale)
    case = case_of(nodes, [*operands, mask], [result("y", 1, heads, Q, width)], shapes)
    names = SiteNodes((), "s", (), "p", (), "y", ())
    site = AttentionSite(
        name="core", kind="decomposed", layer=0, heads=heads, kv_heads=kv_heads, head_dim=width, value_dim=width,
        elem_type=FLOAT, scale=None, q="q", k="k", v="v", mask="m", output="y", past_key=None, past_value=None,
        new_key=None, new_value=None, present_key=None, present_value=None, nodes=names,
    )  # fmt: skip
    return with_forms(replace(case, operator=NAME), site)


def _repeated(source: str, result: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Unsqueeze", [source, "axis"], [f"{source}.5"]),
        helper.make_node("Expand", [f"{source}.5", "group"], [f"{source}.e"]),
        helper.make_node("Reshape", [f"{source}.e", "rows"], [result]),
    ]
