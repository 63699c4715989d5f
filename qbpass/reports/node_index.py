"""Nodes of a model by the tensors they make and read, those of control-flow bodies too."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from qbpass.models.graph_order import subgraphs

# Operators whose further operands say how large the result is, or which part of the first it is.
_SIZED = frozenset(
    {"ConstantOfShape", "Expand", "Pad", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Tile", "TopK", "Unsqueeze"}
)
_RENAMING = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze"})
_DATA_OPERANDS = {"ScatterND": (0, 2), "TensorScatter": (0, 1), "ScatterElements": (0, 2)}


class NodeIndex:
    """A name made in several bodies (the branches of an If) is the first one's."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.makers: dict[str, onnx.NodeProto] = {}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        self.weights: dict[str, TensorProto] = {}
        for graph in _graphs(model.graph):
            for tensor in graph.initializer:
                self.weights.setdefault(tensor.name, tensor)
            for node in graph.node:
                for name in node.output:
                    if name:
                        self.makers.setdefault(name, node)
                for name in dict.fromkeys(node.input):
                    if name:
                        self.readers.setdefault(name, []).append(node)

    def node(self, name: str) -> onnx.NodeProto | None:
        """The node that makes the tensor."""
        return self.makers.get(name)

    def is_constant(self, tensor: str) -> bool:
        """Stored in the graph: an initializer, or a Constant's value."""
        maker = self.makers.get(tensor)
        return tensor in self.weights or (maker is not None and maker.op_type == "Constant")

    def renamed(self, tensor: str) -> str:
        """The tensor that this one is but for its rank."""
        for _ in range(8):
            maker = self.makers.get(tensor)
            if maker is None or maker.op_type not in _RENAMING:
                break
            tensor = maker.input[0]
        return tensor

    def scalar(self, tensor: str) -> float | None:
        """The value of a stored constant of one number, whatever its rank."""
        tensor = self.renamed(tensor)
        proto = self.weights.get(tensor) or self._constant(tensor)
        if proto is None or proto.data_location == TensorProto.EXTERNAL or np.prod(proto.dims, dtype=object) != 1:
            return None
        try:
            return float(numpy_helper.to_array(proto).reshape(-1)[0])
        except (TypeError, ValueError):  # a damaged tensor, or text
            return None

    def _constant(self, tensor: str) -> TensorProto | None:
        maker = self.makers.get(tensor)
        if maker is None or maker.op_type != "Constant":
            return None
        return next((entry.t for entry in maker.attribute if entry.name == "value"), None)


def data_operands(node: onnx.NodeProto) -> Iterator[str]:
    """The operands whose elements the result is made of; not those that say how large it is."""
    chosen = (0,) if node.op_type in _SIZED else _DATA_OPERANDS.get(node.op_type, range(len(node.input)))
    yield from (node.input[at] for at in chosen if at < len(node.input) and node.input[at])


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for body in subgraphs(node):
            yield from _graphs(body)
