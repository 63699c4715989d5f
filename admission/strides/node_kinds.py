"""What an operator does with the elements of its operands. Whatever is not listed here is not traced."""

from __future__ import annotations

import onnx

from qbpass.models.dataflow import attribute

#: Puts elements in other places and changes none of them.
LAYOUT = frozenset(
    {
        *("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten", "Expand", "Tile", "Identity"),
        *("Concat", "Slice", "Split", "Gather", "ScatterND"),
    }
)

#: Reads sizes only.
SIZES = frozenset({"Shape", "Size"})

#: Computes each element from the one in its place.
UNARY = ("Abs", "Exp", "IsNaN", "Log", "Neg", "Not", "Reciprocal", "Sigmoid", "Sqrt", "Tanh")

CASTS = ("Cast", "CastLike")


def cast_label(node: onnx.NodeProto) -> str:
    """A cast's name in the chains of operations that elements go through."""
    return f"Cast to {attribute(node, 'to', 'its type')}"


def data_operands(node: onnx.NodeProto) -> list[int]:
    """The operands of a layout operation that are moved; the others say where to."""
    if node.op_type == "Concat":
        return list(range(len(node.input)))
    return [0, 2] if node.op_type == "ScatterND" else [0]
