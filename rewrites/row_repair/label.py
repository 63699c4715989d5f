"""What a kind of operator is called in plans, manifests and on screen."""

from __future__ import annotations

from collections import Counter

import onnx

from qbpass.admission.dataflow import Flow
from qbpass.admission.row_units.unit import RowUnit
from qbpass.models.dataflow import attribute


def label_of(flow: Flow, unit: RowUnit) -> str:
    """Such as "MatMulNBits int4 block 128 level 4, 576 to 1536", or "DynamicQuantizeLinear with 3
    MatMulIntegerToFloat, 576 wide".
    """
    seed = flow.node(unit.seed)
    others = Counter(flow.node(name).op_type for name in unit.nodes if name != unit.seed)
    text = _operator(seed)
    if others:
        text += " with " + ", ".join(f"{count} {name}" if count > 1 else name for name, count in others.items())
    widths = _widths(flow, unit)
    return f"{text}, {widths}" if widths else text


def _operator(node: onnx.NodeProto) -> str:
    if node.op_type != "MatMulNBits":
        return str(node.op_type)
    bits, block = attribute(node, "bits", 4), attribute(node, "block_size", 0)
    return f"MatMulNBits int{bits} block {block} level {attribute(node, 'accuracy_level', 0)}"


def _widths(flow: Flow, unit: RowUnit) -> str:
    """The last axes of the first operand and of the results."""
    before = _last(flow, unit.rows[0][0])
    after = "+".join(dict.fromkeys(_last(flow, name) for name, _ in unit.results))
    return before if before == after else f"{before} to {after}"


def _last(flow: Flow, tensor: str) -> str:
    shape = flow.shape(tensor)
    return str(shape[-1]) if shape else ""
