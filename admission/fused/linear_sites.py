"""A linear attention and the short convolution in front of it are one layer: the convolution has no site of its own."""

from __future__ import annotations

from dataclasses import replace

import onnx

from qbpass.admission.dataflow import Flow, node_name
from qbpass.admission.fused.fused_node import FusedNode
from qbpass.admission.fused.operators import LINEAR, fused_operator
from qbpass.admission.fused.reading import Reading
from qbpass.admission.walks import WALK_LIMIT
from qbpass.models.dataflow import CONTRACTIONS, SHAPE_OPS

_CONVOLUTIONS = frozenset({"CausalConvWithState", "VarlenCausalConvWithState"})


def is_recurrence(node: onnx.NodeProto) -> bool:
    """A linear attention or state space that is not a convolution alone."""
    operator = fused_operator(node)
    return operator is not None and operator.kind == LINEAR and node.op_type not in _CONVOLUTIONS


def convolutions_before(node: onnx.NodeProto, flow: Flow) -> list[onnx.NodeProto]:
    """The convolutions with a state that the recurrence's operands are computed from, through no other product."""
    found: dict[str, onnx.NodeProto] = {}
    pending = list(dict.fromkeys(name for name in node.input if name))
    for tensor in pending:
        maker = flow.producer(tensor)
        if maker is None or maker.op_type in CONTRACTIONS | SHAPE_OPS or len(pending) >= WALK_LIMIT:
            continue
        if maker.op_type in _CONVOLUTIONS:
            found[node_name(maker)] = maker
        elif fused_operator(maker) is None:
            pending.extend(name for name in maker.input if name and name not in pending)
    return list(found.values())


def with_convolutions(reading: Reading, convolutions: list[onnx.NodeProto], flow: Flow) -> Reading:
    """The reading of a recurrence with the states of the convolutions in front of it."""
    tensors = dict(reading.tensors)
    for number, node in enumerate(convolutions):
        operator = fused_operator(node)
        parts = operator.read(FusedNode(node, flow)).tensors if operator is not None else {}
        ending = f"_{number}" if number else ""
        for part in ("past_state", "present_state"):
            if part in parts:
                tensors[f"conv_{part}{ending}"] = parts[part]
    return replace(reading, tensors=tensors)
