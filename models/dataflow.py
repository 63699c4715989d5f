"""Who makes a tensor, who reads it, what it holds if constant: the questions every search of a graph asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})
INTEGERS = frozenset({TensorProto.INT64, TensorProto.INT32})

# Operators that mix a tensor's elements with another tensor's: where one stage of a decoder ends and the next begins.
CONTRACTIONS = frozenset(
    {
        "MatMul", "FusedMatMul", "Gemm", "Einsum", "Conv", "MatMulNBits", "MatMulBnb4", "MatMulInteger",
        "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul", "QGemm", "GemmFloat8", "MatMulFpQ4",
    }
)  # fmt: skip
FUSED_ATTENTION = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention"})
# Their results say how large a tensor is, not what is in it.
SHAPE_OPS = frozenset({"Shape", "Size"})

Dim = int | str | None


class Dataflow:
    """A graph's nodes, indexed by the tensors they make and read. The top level only; subgraphs are not entered."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.initializers = {t.name: t for t in graph.initializer}
        self.inputs = {v.name: v for v in graph.input if v.name not in self.initializers}
        self.outputs = {v.name: v for v in graph.output}
        self._values = {v.name: v for v in (*graph.value_info, *graph.input, *graph.output)}
        self._maker: dict[str, int] = {}
        self._readers: dict[str, list[tuple[int, int]]] = {}
        for index, node in enumerate(graph.node):
            self._maker.update((name, index) for name in node.output if name)
            for operand, name in enumerate(node.input):
                if name:
                    self._readers.setdefault(name, []).append((index, operand))

    def maker(self, tensor: str) -> onnx.NodeProto | None:
        """The node that makes `tensor`; None for graph inputs and initializers."""
        index = self._maker.get(tensor)
        return None if index is None else self.graph.node[index]

    def position(self, node: onnx.NodeProto) -> int:
        """The node's place in topological order."""
        return self._maker[next(name for name in node.output if name)]

    def readers(self, tensor: str) -> list[tuple[onnx.NodeProto, int]]:
        """(node, operand index) for every use of `tensor`, in topological order."""
        return [(self.graph.node[index], operand) for index, operand in self._readers.get(tensor, [])]

    def source(self, tensor: str, through: frozenset[str] = frozenset({"Identity"})) -> str:
        """`tensor` traced back through operators that only pass on their first operand."""
        node = self.maker(tensor)
        while node is not None and node.op_type in through:
            tensor = node.input[0]
            node = self.maker(tensor)
        return tensor

    def is_constant(self, tensor: str) -> bool:
        """Whether `tensor` is an initializer or a Constant, or made from nothing else."""
        node = self.maker(tensor)
        if node is None:
            return tensor in self.initializers
        return all(self.is_constant(name) for name in node.input if name)

    def constant(self, tensor: str, largest: int = 4096) -> np.ndarray[Any, Any] | None:
        """The value of a small constant held in the graph; None where it is computed, large or stored outside."""
        tensor = self.source(tensor)
        node = self.maker(tensor)
        proto = self.initializers.get(tensor)
        if node is not None and node.op_type == "Constant":
            values = {a.name: a for a in node.attribute}
            if "value" in values:
                proto = values["value"].t
            else:
                found = onnx.helper.get_attribute_value(node.attribute[0]) if node.attribute else None
                return np.asarray(found) if isinstance(found, (int, float, list)) else None
        if proto is None or proto.data_location == TensorProto.EXTERNAL or np.prod(proto.dims) > largest:
            return None
        return numpy_helper.to_array(proto)

    def weight_dims(self, tensor: str) -> list[int] | None:
        """Dims of the initializer behind `tensor`, seen through Identity, Cast and DequantizeLinear."""
        proto = self.initializers.get(self.source(tensor, frozenset({"Identity", "Cast", "DequantizeLinear"})))
        return None if proto is None else list(proto.dims)

    def shape(self, tensor: str) -> list[Dim] | None:
        """The shape the file states: ints, names of symbols, None for unknown dims; None where the rank is unknown."""
        value = self._values.get(tensor)
        if value is None or not value.type.tensor_type.HasField("shape"):
            return None
        return [
            d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in value.type.tensor_type.shape.dim
        ]

    def elem_type(self, tensor: str) -> int:
        """onnx.TensorProto.DataType the file states (UNDEFINED where it does not)."""
        value = self._values.get(tensor)
        return int(value.type.tensor_type.elem_type) if value is not None else 0

    def forward(
        self, tensor: str, enters: Callable[[onnx.NodeProto, int], bool]
    ) -> Iterator[tuple[onnx.NodeProto, int]]:
        """Every (reader, operand index) reached from `tensor`; goes on behind the readers that `enters` accepts."""
        queue, seen = [tensor], {tensor}
        while queue:
            for node, operand in self.readers(queue.pop(0)):
                yield node, operand
                if enters(node, operand):
                    fresh = [name for name in node.output if name and name not in seen]
                    seen.update(fresh)
                    queue.extend(fresh)

    def backward(self, tensor: str, enters: Callable[[onnx.NodeProto], bool]) -> Iterator[onnx.NodeProto]:
        """Every maker reached back from `tensor`; goes on before the makers that `enters` accepts."""
        queue, seen = [tensor], {tensor}
        while queue:
            node = self.maker(queue.pop(0))
            if node is None:
                continue
            yield node
            if enters(node):
                fresh = [name for name in node.input if name and name not in seen]
                seen.update(fresh)
                queue.extend(fresh)


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """The value of a node's attribute, or `default`."""
    for candidate in node.attribute:
        if candidate.name == name:
            return onnx.helper.get_attribute_value(candidate)
    return default
