"""Output types of operators that ONNX has no schema for: com.microsoft's, and what ORT's optimizer leaves in the
default domain. Source of each rule: onnxruntime/core/graph/contrib_ops/{contrib_defs,bert_defs,quantization_defs}.cc.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto

from qbpass.admission.calls.call_inputs import CallShape, TensorInCall
from qbpass.models.dataflow import attribute

Rule = Callable[[onnx.NodeProto, list[TensorInCall | None]], list[TensorInCall]]


def _typed(like: TensorInCall | None, shape: CallShape | None, elem_type: int | None = None) -> TensorInCall:
    known = like.elem_type if like is not None else TensorProto.UNDEFINED
    return TensorInCall(known if elem_type is None else elem_type, shape)


def _shape(tensor: TensorInCall | None) -> CallShape | None:
    return None if tensor is None else tensor.shape


def _same_as_first(node: onnx.NodeProto, inputs: list[TensorInCall | None]) -> list[TensorInCall]:
    return [_typed(inputs[0], _shape(inputs[0])) for _ in node.output[:1]]


def _skip_norm(node: onnx.NodeProto, inputs: list[TensorInCall | None]) -> list[TensorInCall]:
    """(normalised, mean, inverse deviation, sum of input and skip)."""
    shape = _shape(inputs[0])
    row = None if shape is None else (*shape[:-1], 1)
    return [_typed(inputs[0], shape if index in (0, 3) else row) for index in range(len(node.output))]


def _fused_matmul(node: onnx.NodeProto, inputs: list[TensorInCall | None]) -> list[TensorInCall]:
    left, right = _operand(node, inputs[0], "A"), _operand(node, inputs[1], "B")
    if left is None or right is None or min(len(left), len(right)) < 2:
        return [_typed(inputs[0], None)]
    batch = _broadcast(left[:-2], right[:-2])
    return [_typed(inputs[0], None if batch is None else (*batch, left[-2], right[-1]))]


def _operand(node: onnx.NodeProto, tensor: TensorInCall | None, side: str) -> CallShape | None:
    """As the product reads it. transBatch: (b.., r, c) is read with its first batch axis next to last."""
    shape = _shape(tensor)
    if shape is None or len(shape) < 2:
        return shape
    if attribute(node, f"transBatch{side}", 0) and len(shape) > 2:
        shape = (*shape[1:-1], shape[0], shape[-1])
    if attribute(node, f"trans{side}", 0):
        shape = (*shape[:-2], shape[-1], shape[-2])
    return shape


def _broadcast(left: CallShape, right: CallShape) -> CallShape | None:
    rank = max(len(left), len(right))
    pairs = zip((1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right, strict=True)
    dims: list[int | None] = []
    for one, other in pairs:
        if one is None or other is None:
            dims.append(None)
        elif one == other or 1 in (one, other):
            dims.append(max(one, other))
        else:
            return None
    return tuple(dims)


def _fused_gemm(node: onnx.NodeProto, inputs: list[TensorInCall | None]) -> list[TensorInCall]:
    """Gemm with an activation behind it: rank 2."""
    left, right = _operand(node, inputs[0], "A"), _operand(node, inputs[1], "B")
    return [_typed(inputs[0], None if left is None or right is None else (left[0], right[-1]))]


def _matmul_nbits(node: onnx.NodeProto, inputs: list[TensorInCall | None]) -> list[TensorInCall]:
    shape = _shape(inputs[0])
    return [_typed(inputs[0], None if shape is None else (*shape[:-1], int(attribute(node, "N", 0)) or None))]


def _integer_product(node: onnx.NodeProto, inputs: list[TensorInCall | None]) -> list[TensorInCall]:
    """DynamicQuantizeMatMul, MatMulIntegerToFloat: float32 whatever the operands are."""
    left, right = _shape(inputs[0]), _shape(inputs[1])
    shape = None if left is None or right is None or len(right) < 2 else (*left[:-1], right[-1])
    return [_typed(None, shape, TensorProto.FLOAT)]


def _group_query_attention(node: onnx.NodeProto, inputs: list[TensorInCall | None]) -> list[TensorInCall]:
    """Query (1, q, H*d), or packed (1, q, (H + 2*Hkv)*d) where key is absent; past (1, Hkv, past, d)."""
    heads, kv_heads = int(attribute(node, "num_heads", 0)), int(attribute(node, "kv_num_heads", 0))
    query, key = _shape(inputs[0]), _shape(inputs[1]) if len(inputs) > 1 else None
    if query is None or len(query) != 3 or not heads or not kv_heads:
        return [_typed(inputs[0], None)]
    packed = len(node.input) < 2 or not node.input[1]
    width = query[2]
    hidden = None if width is None else width * heads // (heads + 2 * kv_heads) if packed else width
    head_dim = None if hidden is None else hidden // heads
    past = inputs[3] if len(inputs) > 3 else None
    rows = query[1] if packed or key is None or len(key) < 2 else key[1]
    return [
        _typed(inputs[0], (query[0], query[1], hidden)),
        *_presents(past, inputs[0], query[0], kv_heads, rows, head_dim),
    ]


def _presents(
    past: TensorInCall | None,
    like: TensorInCall | None,
    batch: int | None,
    kv_heads: int,
    rows: int | None,
    head_dim: int | None,
) -> list[TensorInCall]:
    shape = _shape(past)
    before = shape[2] if shape is not None and len(shape) == 4 else 0 if past is None else None
    total = None if before is None or rows is None else before + rows
    source = past if past is not None and past.elem_type else like
    return [_typed(source, (batch, kv_heads, total, head_dim))] * 2


def _multi_head_attention(node: onnx.NodeProto, inputs: list[TensorInCall | None]) -> list[TensorInCall]:
    """Query (1, q, H*d), key and value (1, rows, H*d) or (1, H, rows, d); past (1, H, past, d) at operands 6, 7."""
    heads = int(attribute(node, "num_heads", 0))
    query = _shape(inputs[0])
    key, value = (_shape(inputs[i]) if len(inputs) > i else None for i in (1, 2))
    if query is None or len(query) != 3 or not heads or query[2] is None:
        return [_typed(inputs[0], None)]
    value_width = (
        query[2] if value is None else value[2] if len(value) == 3 else value[1] and value[3] and heads * value[3]
    )
    rows = None if key is None else key[1] if len(key) == 3 else key[2]
    past = inputs[6] if len(inputs) > 6 else None
    output = _typed(inputs[0], (query[0], query[1], value_width))
    return [output, *_presents(past, inputs[0], query[0], heads, rows, query[2] // heads)]


def _gather_block_quantized(node: onnx.NodeProto, inputs: list[TensorInCall | None]) -> list[TensorInCall]:
    """Rows of a quantized table, dequantized to the type of the scales (operand 2)."""
    table, indices = _shape(inputs[0]), _shape(inputs[1])
    scales = inputs[2] if len(inputs) > 2 else None
    if table is None or indices is None or len(table) != 2 or int(attribute(node, "gather_axis", 0)) != 0:
        return [_typed(scales, None)]
    packed = inputs[0] is not None and inputs[0].elem_type in (TensorProto.UINT8,) and attribute(node, "bits", 4) == 4
    width = table[1] if table[1] is None else table[1] * (2 if packed else 1)
    return [_typed(scales, (*indices, width))]


CONTRIB_RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("QuickGelu", "BiasGelu", "FastGelu", "Gelu", "RotaryEmbedding", "SimplifiedLayerNormalization",
         "RMSNormalization", "LayerNormalization", "BiasSplitGelu", "GroupNorm", "Swish", "BiasSoftmax", "BiasDropout"),
        _same_as_first,
    ),
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
    "FusedMatMul": _fused_matmul,
    "FusedMatMulActivation": _fused_matmul,
    "FusedGemm": _fused_gemm,
    "MatMulNBits": _matmul_nbits,
    "MatMulBnb4": _matmul_nbits,
    "DynamicQuantizeMatMul": _integer_product,
    "MatMulIntegerToFloat": _integer_product,
    "GroupQueryAttention": _group_query_attention,
    "MultiHeadAttention": _multi_head_attention,
    "GatherBlockQuantized": _gather_block_quantized,
}  # fmt: skip


def element_count(shape: CallShape | None) -> int | None:
    """Elements of a fully known shape."""
    if shape is None or None in shape:
        return None
    return int(np.prod([size for size in shape if size is not None], dtype=object)) if shape else 1
