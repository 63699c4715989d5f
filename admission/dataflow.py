"""A decoder graph as admission asks about it: dataflow, constants, types, and extents in the decoder's own terms.

A node is named by its first output tensor: node names need not be unique, or present.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import onnx

from qbpass.admission.extents import Extent, ExtentTable
from qbpass.admission.shapes import Shape, TensorTypes, infer_types
from qbpass.models.contract import DecoderContract
from qbpass.models.dataflow import Dataflow
from qbpass.models.decoder import Decoder
from qbpass.models.graph_order import node_reads


def node_name(node: onnx.NodeProto) -> str:
    """A node's name in every report: its first output tensor that has a name."""
    return str(next((output for output in node.output if output), node.name))


class Flow:
    """The dataflow of one decoder, its nodes in topological order (loading sees to that). Never changes the graph.

    A walk is bounded by positions in that order: its cost is that of the neighbourhood walked, not of the graph.
    """

    def __init__(self, model: onnx.ModelProto, contract: DecoderContract) -> None:
        self.model = model
        self.contract = contract
        self.outputs = {value.name for value in model.graph.output}
        self.nodes: list[onnx.NodeProto] = list(model.graph.node)
        self._dataflow = Dataflow(model.graph)
        self._producer: dict[str, int] = {}
        self._consumers: dict[str, list[int]] = {}
        for position, node in enumerate(self.nodes):
            self._producer.update((tensor, position) for tensor in node.output if tensor)
            for tensor in dict.fromkeys(node_reads(node)):
                self._consumers.setdefault(tensor, []).append(position)

    @classmethod
    def of(cls, decoder: Decoder) -> Flow:
        """The dataflow of a decoder's graph."""
        return cls(decoder.model, decoder.contract)

    def producer(self, tensor: str) -> onnx.NodeProto | None:
        """The node that makes the tensor; None for graph inputs and initializers."""
        position = self._producer.get(tensor)
        return None if position is None else self.nodes[position]

    def consumers(self, tensor: str) -> list[onnx.NodeProto]:
        """The nodes that read the tensor, in topological order; those that capture it in a control-flow body, too."""
        return [self.nodes[position] for position in self._consumers.get(tensor, ())]

    def position(self, tensor: str) -> int:
        """Topological position of the tensor's producer; -1 for graph inputs and initializers."""
        return self._producer.get(tensor, -1)

    def node(self, name: str) -> onnx.NodeProto:
        """The node of that name (its first output tensor)."""
        return self.nodes[self._producer[name]]

    def between(self, source: str, sink: str) -> list[onnx.NodeProto]:
        """Nodes that are descendants of the source tensor and ancestors of the sink tensor, in topological order."""
        below = self._reached(source, last=self.position(sink))
        found: set[int] = set()
        pending = [sink]
        while pending:
            position = self._producer.get(pending.pop())
            if position in below and position not in found:
                found.add(position)
                pending.extend(tensor for tensor in node_reads(self.nodes[position]) if tensor != source)
        return [self.nodes[position] for position in sorted(found)]

    def _reached(self, source: str, last: int) -> set[int]:
        """Positions up to `last` of the nodes that depend on the source tensor."""
        reached: set[int] = set()
        pending = [source]
        while pending:
            for position in self._consumers.get(pending.pop(), ()):
                if position <= last and position not in reached:
                    reached.add(position)
                    pending.extend(output for output in self.nodes[position].output if output)
        return reached

    @cached_property
    def activations(self) -> frozenset[str]:
        """Tensors that depend on a graph input. (An initializer that is also listed as an input is a constant.)"""
        live = set(self._dataflow.inputs)
        for node in self.nodes:
            if any(tensor in live for tensor in node_reads(node)):
                live.update(output for output in node.output if output)
        return frozenset(live)

    def constant(self, tensor: str) -> np.ndarray[Any, Any] | None:
        """The value of a small constant stored in the graph itself; None for activations, weights and external data."""
        return self._dataflow.constant(tensor)

    def scalar(self, tensor: str) -> float | None:
        """The value of a constant with exactly one element."""
        value = self.constant(tensor)
        return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None

    @cached_property
    def types(self) -> TensorTypes:
        """Shape and element type of every tensor for which the graph declares or implies one."""
        return infer_types(self.model)

    def shape(self, tensor: str) -> Shape | None:
        """Dimensions as the graph declares or implies them: int, symbol, or None where unknown."""
        return self.types.shapes.get(tensor)

    def elem_type(self, tensor: str) -> int:
        """onnx.TensorProto.DataType; 0 (UNDEFINED) where unknown."""
        return self.types.elem_types.get(tensor, onnx.TensorProto.UNDEFINED)

    @cached_property
    def extents(self) -> ExtentTable:
        """Symbolic dimensions in the decoder's own terms: queries, past."""
        return ExtentTable.of(self.contract, self.types.shapes)

    def extent(self, tensor: str, axis: int) -> Extent | None:
        """One dimension in terms of queries and past; None where the rank or the dimension is unknown."""
        shape = self.shape(tensor)
        if shape is None or not -len(shape) <= axis < len(shape):
            return None
        return self.extents.read(shape[axis])
