"""Cases whose answers are known on every machine: what differs in them differs by what they compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from qbpass.admission.probes.case import CASE, Case, Operand, Result, Weight
from qbpass.admission.probes.falsify import Bench
from qbpass.admission.probes.fills import NORMAL, Fill
from qbpass.admission.probes.probe import Settings
from qbpass.admission.probes.sizes import Size
from qbpass.admission.probes.store import Store, as_plain
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
