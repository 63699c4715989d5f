"""Output types of com.microsoft's fused attention operators.

Source: onnxruntime/core/graph/contrib_ops/bert_defs.cc (type and shape inference of ONNX Runtime 1.32).
"""

from __future__ import annotations

import onnx
from onnx import TensorProto

from qbpass.admission.calls.call_inputs import CallShape, TensorInCall
from qbpass.admission.calls.rule import Rule, shape_of, typed
from qbpass.models.dataflow import int_attribute

_Inputs = list[TensorInCall | None]


def _at(inputs: _Inputs, number: int) -> TensorInCall | None:
    return inputs[number] if number < len(inputs) else None


def _count(node: onnx.NodeProto, name: str) -> int | None:
    """A positive number of heads; None where the attribute is missing or damaged."""
    found = int_attribute(node, name)
    return found if found is not None and found > 0 else None


def _divided(width: int | None, parts: int | None) -> int | None:
    return width // parts if width is not None and parts else None


def _grouped(past: int, in_place: bool) -> Rule:
    """Query (1, q, H*d), or packed (1, q, (H + 2*Hkv)*d) where key is absent; past (1, Hkv, past, d) at `past`.

    in_place: the present is the past's own buffer.
    """

    def rule(node: onnx.NodeProto, inputs: _Inputs) -> list[TensorInCall]:
        heads, kv_heads = _count(node, "num_heads"), _count(node, "kv_num_heads")
        query, key = shape_of(_at(inputs, 0)), shape_of(_at(inputs, 1))
        if query is None or len(query) != 3 or heads is None or kv_heads is None:
            return [typed(_at(inputs, 0), None)]
        packed = len(node.input) < 2 or not node.input[1]
        head_dim = _divided(query[2], heads + 2 * kv_heads if packed else heads)
        rows = query[1] if packed or key is None or len(key) < 2 else key[1]
        width = None if head_dim is None else head_dim * heads
        output = typed(_at(inputs, 0), (query[0], query[1], width))
        if in_place or int_attribute(node, "sliding_window_cache") == 1:
            rows = 0
        return [output, *_presents(_at(inputs, past), _at(inputs, 0), (query[0], kv_heads, rows, head_dim))]

    return rule


def _presents(past: TensorInCall | None, like: TensorInCall | None, new: CallShape) -> list[TensorInCall]:
    """Present key and value: `new` (streams, heads, rows, d) behind the past. Packed 4-bit rows are narrower."""
    shape = shape_of(past)
    before = shape[2] if shape is not None and len(shape) == 4 else 0 if past is None else None
    total = None if before is None or new[2] is None else before + new[2]
    packed = past is not None and past.elem_type == TensorProto.UINT8 and shape is not None and len(shape) == 4
    width = shape[3] if packed and shape is not None else new[3]
    source = past if past is not None and past.elem_type else like
    return [typed(source, (new[0], new[1], total, width))] * 2


def _multi_head(past: int, counter: int, one_row: bool) -> Rule:
    """Query (1, q, H*d), key and value (1, rows, H*d) or (1, H, rows, d), or packed; past (1, H, past, d) at `past`.

    counter: the operand that counts a buffer's rows; where it is given, the present is that buffer.
    one_row: DecoderMaskedMultiHeadAttention, which packs (1, 1, 3*H*d).
    """

    def rule(node: onnx.NodeProto, inputs: _Inputs) -> list[TensorInCall]:
        heads = _count(node, "num_heads")
        query, key, value = (shape_of(_at(inputs, number)) for number in range(3))
        if query is None or len(query) not in (3, 5) or heads is None:
            return [typed(_at(inputs, 0), None)]
        packed = len(query) == 5 or (one_row and (len(node.input) < 2 or not node.input[1]))
        head_dim = query[4] if len(query) == 5 else _divided(query[2], 3 * heads if packed else heads)
        value_width = _width(value, heads) if value is not None else None if head_dim is None else heads * head_dim
        rows = query[1] if packed else None if key is None or len(key) < 3 else key[2] if len(key) == 4 else key[1]
        rows = rows if _at(inputs, counter) is None else 0
        output = typed(_at(inputs, 0), (query[0], query[1], value_width))
        return [output, *_presents(_at(inputs, past), _at(inputs, 0), (query[0], heads, rows, head_dim))]

    return rule


def _width(value: CallShape, heads: int) -> int | None:
    """H*dv of (1, rows, H*dv) or (1, H, rows, dv)."""
    if len(value) == 3:
        return value[2]
    return heads * value[3] if len(value) == 4 and value[3] is not None else None


def _projecting(node: onnx.NodeProto, inputs: _Inputs) -> list[TensorInCall]:
    """Input (1, q, w), weights (w, H*d + H*d + H*dv); past and present (2, 1, H, n, d)."""
    past_at = 8 if node.op_type == "QAttention" else 4
    like = _at(inputs, 2)  # the bias: the input of QAttention is quantized, and its output is not
    like = like if like is not None and like.elem_type else _at(inputs, 0)
    hidden, weights, past = (shape_of(_at(inputs, number)) for number in (0, 1, past_at))
    heads = _count(node, "num_heads")
    if hidden is None or len(hidden) != 3 or weights is None or len(weights) != 2 or heads is None:
        return [typed(like, None)]
    sizes = [list(entry.ints) for entry in node.attribute if entry.name == "qkv_hidden_sizes"]
    third = _divided(weights[1], 3)
    given = sizes and len(sizes[0]) == 3 and min(sizes[0]) > 0
    keys, values = (sizes[0][1], sizes[0][2]) if given else (third, third)
    before = past[3] if past is not None and len(past) == 5 else 0 if _at(inputs, past_at) is None else None
    rows = 0 if int_attribute(node, "past_present_share_buffer") == 1 else hidden[1]
    total = None if before is None or rows is None else before + rows
    present = typed(like, (2, hidden[0], heads, total, _divided(keys, heads)))
    return [typed(like, (hidden[0], hidden[1], values)), present]


def _linear(node: onnx.NodeProto, inputs: _Inputs) -> list[TensorInCall]:
    """Query (1, q, H*dk), value (1, q, Hkv*dv); the state keeps its shape."""
    query, value = shape_of(_at(inputs, 0)), shape_of(_at(inputs, 2))
    heads, kv_heads = _count(node, "q_num_heads"), _count(node, "kv_num_heads")
    state = _at(inputs, 3)
    if query is None or value is None or len(query) != 3 or len(value) != 3 or heads is None or kv_heads is None:
        return [typed(_at(inputs, 0), None), typed(state, shape_of(state))]
    value_dim = _divided(value[2], kv_heads)
    width = None if value_dim is None else max(heads, kv_heads) * value_dim
    return [typed(_at(inputs, 0), (query[0], query[1], width)), typed(state, shape_of(state))]


def _convolution(state: int) -> Rule:
    """The input's shape; the state keeps its own."""

    def rule(node: onnx.NodeProto, inputs: _Inputs) -> list[TensorInCall]:
        first, kept = _at(inputs, 0), _at(inputs, state)
        return [typed(first, shape_of(first)), typed(kept, shape_of(kept))]

    return rule


FUSED_RULES: dict[str, Rule] = {
    "GroupQueryAttention": _grouped(past=3, in_place=False),
    "SparseAttention": _grouped(past=3, in_place=True),
    "DynamicSparseAttention": _grouped(past=3, in_place=False),
    "MultiHeadAttention": _multi_head(past=6, counter=8, one_row=False),
    "DecoderMaskedMultiHeadAttention": _multi_head(past=5, counter=7, one_row=True),
    "Attention": _projecting,
    "DecoderMaskedSelfAttention": _projecting,
    "QAttention": _projecting,
    "LinearAttention": _linear,
    "CausalConvWithState": _convolution(state=3),
    "VarlenCausalConvWithState": _convolution(state=4),
}
