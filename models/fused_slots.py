"""Which operands and results of fused attention operators are keys, values and caches.

Sources: ONNX's Attention (versions 23, 24) and ONNX Runtime's ContribOperators.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from qbpass.models.dataflow import Dataflow


@dataclass(frozen=True)
class FusedSlots:
    """Operand numbers of key and value, of past key and past value; result numbers of the presents.

    Where one cache holds both keys and values, its two numbers are the same. buffer: the operand that, where it is
    given, says how many rows of a cache of fixed length are filled.
    """

    read: tuple[int, int] | None
    past: tuple[int, int] | None
    present: tuple[int, int] | None
    buffer: int | None = None


_MICROSOFT = "com.microsoft"
_SLOTS = {
    (_MICROSOFT, "GroupQueryAttention"): FusedSlots((1, 2), (3, 4), (1, 2)),
    (_MICROSOFT, "MultiHeadAttention"): FusedSlots((1, 2), (6, 7), (1, 2), buffer=8),
    (_MICROSOFT, "DecoderMaskedMultiHeadAttention"): FusedSlots((1, 2), (5, 6), (1, 2), buffer=7),
    (_MICROSOFT, "SparseAttention"): FusedSlots((1, 2), (3, 4), (1, 2)),
    (_MICROSOFT, "DynamicSparseAttention"): FusedSlots((1, 2), (3, 4), (1, 2)),
    # Blocks of rows in no order: the block table and the lengths say which rows count.
    (_MICROSOFT, "PagedAttention"): FusedSlots((1, 2), (3, 4), (1, 2), buffer=6),
    (_MICROSOFT, "DecoderAttention"): FusedSlots(None, (6, 7), (1, 2)),
    (_MICROSOFT, "Attention"): FusedSlots(None, (4, 4), (1, 1), buffer=6),
    (_MICROSOFT, "DecoderMaskedSelfAttention"): FusedSlots(None, (4, 4), (1, 1), buffer=6),
    (_MICROSOFT, "QAttention"): FusedSlots(None, (8, 8), (1, 1)),
    ("", "Attention"): FusedSlots((1, 2), (4, 5), (1, 2)),
}

# (domain, operator) -> operands that say how many rows of a cache count, or where new rows go
_COUNTERS = {
    (_MICROSOFT, "GroupQueryAttention"): (5, 6, 16),
    (_MICROSOFT, "SparseAttention"): (7, 8),
    (_MICROSOFT, "DynamicSparseAttention"): (9, 10),
    (_MICROSOFT, "PagedAttention"): (5, 6, 7, 10),
    (_MICROSOFT, "MultiHeadAttention"): (8,),
    (_MICROSOFT, "DecoderMaskedMultiHeadAttention"): (7,),
    (_MICROSOFT, "Attention"): (6,),
    (_MICROSOFT, "DecoderMaskedSelfAttention"): (6,),
    ("", "Attention"): (6,),
    ("", "TensorScatter"): (2,),
    ("", "ScatterND"): (1,),
    ("", "ScatterElements"): (1,),
}

# (domain, operator) -> the operand that takes positions
_POSITIONS = {
    (_MICROSOFT, "RotaryEmbedding"): 1,
    ("", "RotaryEmbedding"): 3,
    (_MICROSOFT, "GroupQueryAttention"): 9,
    (_MICROSOFT, "EmbedLayerNormalization"): 8,
}


def operator(node: onnx.NodeProto) -> tuple[str, str]:
    """(domain, operator), with one name for ONNX's own domain."""
    return "" if node.domain == "ai.onnx" else node.domain, node.op_type


def fused_slots(node: onnx.NodeProto) -> FusedSlots | None:
    """The slots of a fused attention; None for other operators and for fused attentions that take no cache."""
    return _SLOTS.get(operator(node))


def takes_count(node: onnx.NodeProto, operand: int) -> bool:
    """Whether the operand says how many rows of a cache count, or where new rows go."""
    return operand in _COUNTERS.get(operator(node), ())


def takes_positions(node: onnx.NodeProto, operand: int) -> bool:
    """Whether the operand of a rotary or embedding operator holds positions."""
    return _POSITIONS.get(operator(node)) == operand


def has_operand(node: onnx.NodeProto, operand: int | None) -> bool:
    """Whether an optional operand is given."""
    return operand is not None and len(node.input) > operand and node.input[operand] != ""


def result(node: onnx.NodeProto, number: int) -> str | None:
    """The name of an optional result; None where it is left out."""
    return node.output[number] if len(node.output) > number and node.output[number] else None


def is_softmax(node: onnx.NodeProto, flow: Dataflow) -> bool:
    """A Softmax, one fused with its bias, or the division that ends one spelled out: Exp(x) / ReduceSum(Exp(x))."""
    if node.op_type in ("Softmax", "BiasSoftmax", "QLinearSoftmax"):
        return True
    if node.op_type != "Div":
        return False
    top, bottom = (flow.maker(name) for name in node.input[:2])
    return (
        top is not None
        and bottom is not None
        and top.op_type == "Exp"
        and bottom.op_type == "ReduceSum"
        and bottom.input[0] == top.output[0]
    )
