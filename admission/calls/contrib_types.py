"""Output types of operators that ONNX has no schema for: com.microsoft's, and what ORT's optimizer leaves in the
default domain. Source of each rule: onnxruntime/core/graph/contrib_ops/{contrib_defs,bert_defs,quantization_defs}.cc.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from qbpass.admission.calls.call_inputs import CallShape, TensorInCall
from qbpass.admission.calls.fused_types import FUSED_RULES
from qbpass.admission.calls.rule import Rule, shape_of, typed
from qbpass.models.dataflow import attribute


def _same_as_first(node: onnx.NodeProto, inputs: list[TensorInCall | None]) -> list[TensorInCall]:
    return [typed(inputs[0], shape_of(inputs[0])) for _ in node.output[:1]]


def _skip_norm(node: onnx.NodeProto, inputs: list[TensorInCall | None]) -> list[TensorInCall]:
    """(normalised, mean, inverse deviation, sum of input and skip)."""
    shape = shape_of(inputs[0])
    row = None if shape is None else (*shape[:-1], 1)
    return [typed(inputs[0], shape if index in (0, 3) else row) for index in range(len(node.output))]


def _embed_norm(node: onnx.NodeProto, inputs: list[TensorInCall | None]) -> list[TensorInCall]:
    """Token ids (1, q), table (vocabulary, w): (rows of the table, a mask index, their sum before the norm)."""
    ids, table = shape_of(inputs[0]), shape_of(inputs[2]) if len(inputs) > 2 else None
    rows = None if ids is None or table is None or len(table) != 2 else (*ids, table[1])
    like = inputs[2] if len(inputs) > 2 else None
    index = typed(None, None if ids is None else ids[:1], TensorProto.INT32)
    return [typed(like, rows), index, typed(like, rows)]


def _fused_matmul(node: onnx.NodeProto, inputs: list[TensorInCall | None]) -> list[TensorInCall]:
    left, right = _operand(node, inputs[0], "A"), _operand(node, inputs[1], "B")
    if left is None or right is None or min(len(left), len(right)) < 2:
        return [typed(inputs[0], None)]
    batch = _broadcast(left[:-2], right[:-2])
    return [typed(inputs[0], None if batch is None else (*batch, left[-2], right[-1]))]


def _operand(node: onnx.NodeProto, tensor: TensorInCall | None, side: str) -> CallShape | None:
    """As the product reads it. transBatch: (b.., r, c) is read with its first batch axis next to last."""
    shape = shape_of(tensor)
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
    return [typed(inputs[0], None if left is None or right is None else (left[0], right[-1]))]


def _matmul_nbits(node: onnx.NodeProto, inputs: list[TensorInCall | None]) -> list[TensorInCall]:
    shape = shape_of(inputs[0])
    return [typed(inputs[0], None if shape is None else (*shape[:-1], int(attribute(node, "N", 0)) or None))]


def _integer_product(node: onnx.NodeProto, inputs: list[TensorInCall | None]) -> list[TensorInCall]:
    """DynamicQuantizeMatMul, MatMulIntegerToFloat: float32 whatever the operands are."""
    left, right = shape_of(inputs[0]), shape_of(inputs[1])
    shape = None if left is None or right is None or len(right) < 2 else (*left[:-1], right[-1])
    return [typed(None, shape, TensorProto.FLOAT)]


def _gather_block_quantized(node: onnx.NodeProto, inputs: list[TensorInCall | None]) -> list[TensorInCall]:
    """Rows of a quantized table, dequantized to the type of the scales (operand 2)."""
    table, indices = shape_of(inputs[0]), shape_of(inputs[1])
    scales = inputs[2] if len(inputs) > 2 else None
    if table is None or indices is None or len(table) != 2 or int(attribute(node, "gather_axis", 0)) != 0:
        return [typed(scales, None)]
    packed = inputs[0] is not None and inputs[0].elem_type in (TensorProto.UINT8,) and attribute(node, "bits", 4) == 4
    width = table[1] if table[1] is None else table[1] * (2 if packed else 1)
    return [typed(scales, (*indices, width))]


CONTRIB_RULES: dict[str, Rule] = {
    **FUSED_RULES,
    **dict.fromkeys(
        ("QuickGelu", "BiasGelu", "FastGelu", "Gelu", "RotaryEmbedding", "SimplifiedLayerNormalization",
         "RMSNormalization", "LayerNormalization", "BiasSplitGelu", "GroupNorm", "Swish", "BiasSoftmax", "BiasDropout"),
        _same_as_first,
    ),
    "EmbedLayerNormalization": _embed_norm,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
    "FusedMatMul": _fused_matmul,
    "FusedMatMulActivation": _fused_matmul,
    "FusedGemm": _fused_gemm,
    "MatMulNBits": _matmul_nbits,
    "MatMulBnb4": _matmul_nbits,
    "DynamicQuantizeMatMul": _integer_product,
    "MatMulIntegerToFloat": _integer_product,
    "GatherBlockQuantized": _gather_block_quantized,
}  # fmt: skip


def element_count(shape: CallShape | None) -> int | None:
    """Elements of a fully known shape."""
    if shape is None or None in shape:
        return None
    return int(np.prod([size for size in shape if size is not None], dtype=object)) if shape else 1
