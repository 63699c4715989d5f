"""Element types and shapes of every tensor of a graph and of its control-flow bodies, decoder or not.

Types go through each node by ONNX's own inference, or a contrib operator's rule; a dimension is symbolic only where the
file itself declares it so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx
from onnx import TensorProto

from qbpass.admission.backends.descriptor import Dim, Shape
from qbpass.admission.calls.call_inputs import TensorInCall
from qbpass.admission.calls.node_types import UNKNOWN, output_types


@dataclass
class TensorTypes:
    """Types of the tensors that one graph sees: its own and those of the graphs around it.

    known: elem_type (onnx.TensorProto.DataType, 0 where unknown) and sizes, None for a symbol; symbols: the shapes
    that the file declares, symbols by name.
    """

    opsets: dict[str, int]
    known: dict[str, TensorInCall] = field(default_factory=dict)
    symbols: dict[str, Shape] = field(default_factory=dict)

    @classmethod
    def of(cls, model: onnx.ModelProto) -> TensorTypes:
        """The types that the top level sees before its first node: inputs and initializers."""
        types = cls({"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import})
        types._declare(model.graph)
        return types

    def inside(self, body: onnx.GraphProto) -> TensorTypes:
        """The types that a control-flow body sees before its first node."""
        types = TensorTypes(self.opsets, dict(self.known), dict(self.symbols))
        types._declare(body)
        return types

    def enter(self, node: onnx.NodeProto, bodies: dict[str, TensorTypes]) -> None:
        """Learn the types of a node's outputs. bodies: by attribute, the types inside after their last node."""
        found = [] if node.op_type == "Constant" else output_types(node, self.known, self.opsets)
        for index, name in enumerate(node.output):
            if not name:
                continue
            inferred = found[index] if index < len(found) else UNKNOWN
            if not inferred.elem_type:
                inferred = _of_branch(node, bodies, index) or inferred
            declared = self.known.get(name, UNKNOWN)
            shape = _merged(inferred.shape, declared.shape)
            self.known[name] = TensorInCall(inferred.elem_type or declared.elem_type, shape)

    def elem_type(self, tensor: str) -> int:
        return self.known.get(tensor, UNKNOWN).elem_type

    def shape(self, tensor: str) -> Shape | None:
        """Sizes as computed, else as declared; a symbol where the file declares one."""
        shape = self.known.get(tensor, UNKNOWN).shape
        declared = self.symbols.get(tensor)
        if shape is None or declared is None or len(shape) != len(declared):
            return shape if declared is None else declared
        return tuple(size if size is not None else symbol for size, symbol in zip(shape, declared, strict=True))

    def _declare(self, graph: onnx.GraphProto) -> None:
        for value in (*graph.value_info, *graph.output, *graph.input):
            tensor = value.type.tensor_type
            shape = tuple(_dim(dim) for dim in tensor.shape.dim) if tensor.HasField("shape") else None
            sizes = None if shape is None else tuple(dim if isinstance(dim, int) else None for dim in shape)
            self.known[value.name] = TensorInCall(tensor.elem_type, sizes)
            if shape is not None:
                self.symbols[value.name] = shape
        for weight in graph.initializer:
            self.known[weight.name] = TensorInCall(weight.data_type, tuple(weight.dims))
            self.symbols.pop(weight.name, None)
        for node in graph.node:
            if node.op_type == "Constant":
                self._declare_constant(node)

    def _declare_constant(self, node: onnx.NodeProto) -> None:
        for attribute in node.attribute:
            if attribute.name == "value" and node.output:
                self.known[node.output[0]] = TensorInCall(attribute.t.data_type, tuple(attribute.t.dims))
            elif attribute.name in _CONSTANT_TYPES and node.output:
                elem_type = _CONSTANT_TYPES[attribute.name]
                count = len(attribute.ints) + len(attribute.floats) + len(attribute.strings)
                shape = (count,) if attribute.name.endswith("s") else ()
                self.known[node.output[0]] = TensorInCall(elem_type, shape)


_CONSTANT_TYPES = {
    "value_int": TensorProto.INT64,
    "value_ints": TensorProto.INT64,
    "value_float": TensorProto.FLOAT,
    "value_floats": TensorProto.FLOAT,
    "value_string": TensorProto.STRING,
    "value_strings": TensorProto.STRING,
}


def _of_branch(node: onnx.NodeProto, bodies: dict[str, TensorTypes], index: int) -> TensorInCall | None:
    """An If's output has the type of the same output of its branches; its size is theirs only where they agree."""
    if node.op_type != "If":
        return None
    for attribute in node.attribute:
        outputs = list(attribute.g.output)
        if attribute.name in bodies and index < len(outputs):
            elem_type = bodies[attribute.name].elem_type(outputs[index].name)
            if elem_type:
                return TensorInCall(elem_type, None)
    return None


def _merged(
    inferred: tuple[int | None, ...] | None, declared: tuple[int | None, ...] | None
) -> tuple[int | None, ...] | None:
    if inferred is None or declared is None or len(inferred) != len(declared):
        return declared if inferred is None else inferred
    return tuple(a if a is not None else b for a, b in zip(inferred, declared, strict=True))


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    # Inference invents symbols where it does not know a size: such a dimension is not declared to be dynamic.
    return dim.dim_param if dim.dim_param and not dim.dim_param.startswith("unk__") else None


def bodies_of(node: onnx.NodeProto) -> dict[str, onnx.GraphProto]:
    """Attribute name -> the control-flow body it holds (the first, where it holds several)."""
    held = {a.name: a.g for a in node.attribute if a.HasField("g")}
    return held | {a.name: a.graphs[0] for a in node.attribute if a.graphs}
