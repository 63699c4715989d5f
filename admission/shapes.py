"""Shapes and element types of every tensor, from the file's own value_info or from ONNX shape inference.

ONNX's inference knows the standard operators only. What ORT's optimizer leaves behind also holds FusedMatMul and
QuickGelu (com.microsoft), which are handed to it as standard operators of the same shape rule. No weight is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper, shape_inference

Dim = int | str | None
Shape = tuple[Dim, ...]

# com.microsoft operators whose output has the type and shape of their first input
_SAME_AS_INPUT = frozenset({"QuickGelu", "BiasGelu", "FastGelu", "Gelu"})


@dataclass(frozen=True)
class TensorTypes:
    """`shapes` holds no entry for a tensor of unknown rank, `elem_types` none for one of unknown type."""

    shapes: dict[str, Shape]
    elem_types: dict[str, int]


def infer_types(model: onnx.ModelProto) -> TensorTypes:
    """Types of every tensor. Inference runs only where the file leaves out the shape of a node's output."""
    declared = read_types(model.graph)
    made = [output for node in model.graph.node for output in node.output if output]
    if all(name in declared.shapes for name in made):
        return declared
    inferred = read_types(shape_inference.infer_shapes(standard_twin(model), data_prop=True).graph)
    # What the file declares goes first: inference invents new symbols behind every Reshape to -1.
    return TensorTypes({**inferred.shapes, **declared.shapes}, {**inferred.elem_types, **declared.elem_types})


def read_types(graph: onnx.GraphProto) -> TensorTypes:
    """Types that a graph declares: inputs, outputs, value_info and initializers."""
    types = TensorTypes({}, {})
    for value in (*graph.value_info, *graph.input, *graph.output):
        tensor = value.type.tensor_type
        if tensor.elem_type != TensorProto.UNDEFINED:
            types.elem_types[value.name] = tensor.elem_type
        if tensor.HasField("shape"):
            types.shapes[value.name] = tuple(read_dim(dim) for dim in tensor.shape.dim)
    for init in graph.initializer:
        types.shapes[init.name] = tuple(init.dims)
        types.elem_types[init.name] = init.data_type
    return types


def read_dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return dim.dim_param or None


def standard_twin(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model of the same tensor names and shapes without fused products. For inference only: its values differ."""
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    del twin.graph.node[:]
    for node in model.graph.node:
        twin.graph.node.extend(_standard(node))
    return twin


def _standard(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    if node.domain != "com.microsoft":
        return [node]
    if node.op_type in _SAME_AS_INPUT:
        return [helper.make_node("Identity", node.input[:1], node.output)]
    if node.op_type != "FusedMatMul":
        return [node]
    flags = {attr.name: attr.i for attr in node.attribute if attr.type == onnx.AttributeProto.INT}
    if flags.get("transBatchA") or flags.get("transBatchB"):
        return [node]  # shape stays unknown: no decoder export has it, and discovery refuses it
    nodes, operands = [], []
    for name, tensor in (("transA", node.input[0]), ("transB", node.input[1])):
        # Swapping the last two axes of unknown rank has no standard operator; Einsum has an ellipsis.
        turned = f"{node.output[0]}/{name}"
        if flags.get(name):
            nodes.append(helper.make_node("Einsum", [tensor], [turned], equation="...ij->...ji"))
        operands.append(turned if flags.get(name) else tensor)
    return [*nodes, helper.make_node("MatMul", operands, node.output)]
