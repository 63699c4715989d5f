"""What builtin cases are written with: sizes of a small decoder, and short names for operands, weights and results."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto, helper

from qbpass.admission.probes.case import CASE, Case, Operand, Result, Weight
from qbpass.admission.probes.fills import NORMAL, Fill
from qbpass.admission.probes.forms import LOWERED
from qbpass.admission.probes.sizes import Size

GRAPH = "builtin"
MICROSOFT = "com.microsoft"
FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32
HEADS, KV_HEADS, WIDTH = 9, 3, 64
HIDDEN, INNER = 576, 1536
SCALE = 1 / 8  # 1 / sqrt(WIDTH)

Q, N, PAST = Size(rows=1), Size(keys=1), Size(rows=-1, keys=1)
POSITIVE = Fill(kind="positive")


def _dims(*parts: Size | int) -> tuple[Size, ...]:
    return tuple(part if isinstance(part, Size) else Size(fixed=part) for part in parts)


def operand(name: str, *dims: Size | int, fill: Fill = NORMAL, elem_type: int = FLOAT) -> Operand:
    return Operand(name, elem_type, _dims(*dims), fill)


def weight(name: str, *dims: int, seed: int = 1) -> Weight:
    return Weight(name, FLOAT, dims, fill=Fill(kind="normal", scale=dims[0] ** -0.5), seed=seed)


def case_of(
    nodes: list[onnx.NodeProto],
    operands: list[Operand],
    results: list[Result],
    weights: list[Weight] | None = None,
    *,
    name: str = "",
    lowered: list[onnx.NodeProto] | None = None,
    opset: int = 21,
    carried: dict[str, str] | None = None,
) -> Case:
    forms = {CASE: tuple(nodes)} | ({LOWERED: tuple(lowered)} if lowered else {})
    domain = "" if name else nodes[0].domain
    opsets = {"": opset, MICROSOFT: 1}
    operator = name or nodes[0].op_type
    return Case(
        operator,
        domain,
        forms,
        tuple(operands),
        tuple(weights or ()),
        tuple(results),
        opsets,
        GRAPH,
        carried=carried or {},
    )


def result(*dims: Size | int, elem_type: int = FLOAT, name: str = "y") -> Result:
    return Result(name, elem_type, _dims(*dims))


def contrib(operator: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, outputs, domain=MICROSOFT, **attributes)
