"""Which nodes compute: those whose result may depend on how they are run."""

from __future__ import annotations

import onnx

from qbpass.models.dataflow import attribute
from qbpass.models.graph_order import subgraphs

#: Their results are their operands' bytes in another place, or say how large something is.
MOVERS = frozenset(
    {
        "Compress", "Concat", "Constant", "ConstantOfShape", "DepthToSpace", "Expand", "EyeLike", "Flatten",
        "Gather", "GatherElements", "GatherND", "Identity", "NonZero", "OneHot", "Pad", "Range", "Reshape",
        "ReverseSequence", "ScatterElements", "ScatterND", "Shape", "Size", "Slice", "SpaceToDepth", "Split",
        "Squeeze", "TensorScatter", "Tile", "Transpose", "Trilu", "Unique", "Unsqueeze", "Where", "Dropout",
        "Optional", "OptionalGetElement", "OptionalHasElement", "MemcpyToHost", "MemcpyFromHost",
        "GatherBlockQuantized",
    }
)  # fmt: skip

#: One exact result for each element of the operands, or a choice among them.
EXACT = frozenset(
    {
        "Abs", "And", "ArgMax", "ArgMin", "BitShift", "BitwiseAnd", "BitwiseOr", "Ceil", "Clip", "Equal", "Floor",
        "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Max", "Min", "Neg", "Not", "Or",
        "Relu", "Round", "Sign", "TopK", "Xor",
    }
)  # fmt: skip

PRODUCTS = frozenset(
    {"MatMul", "FusedMatMul", "MatMulNBits", "MatMulBnb4", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"}
)
SOFTMAXES = frozenset({"Softmax", "LogSoftmax"})

#: Fused attention with a KV cache: (domain, operator) -> {past operand's place: present result's place}.
CACHING = {
    ("com.microsoft", "GroupQueryAttention"): {3: 1, 4: 2},
    ("com.microsoft", "MultiHeadAttention"): {6: 1, 7: 2},
    ("com.microsoft", "Attention"): {4: 1},
    ("", "Attention"): {4: 1, 5: 2},
}

FLOATS = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE}
)


def domain_of(node: onnx.NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else str(node.domain)


def masks_by_place(node: onnx.NodeProto) -> bool:
    """Whether a fused attention by itself lets a row look at other keys than the next row."""
    flags = ("is_causal", "unidirectional")
    return node.op_type == "GroupQueryAttention" or any(attribute(node, flag, 0) for flag in flags)


def has_bodies(node: onnx.NodeProto) -> bool:
    """Whether the node holds subgraphs (If, Loop, Scan)."""
    return next(subgraphs(node), None) is not None
