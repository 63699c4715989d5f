"""A decoder graph as admission asks about it: dataflow, constants, types, and extents in the decoder's own terms.

A node is named by its first output tensor: node names need not be unique, or present.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import onnx

from qbpass.admission.calls.call import CALLS, Call
from qbpass.admission.calls.fit import fit_extent
from qbpass.admission.calls.memory import Memory
from qbpass.admission.calls.trace import CallTrace
from qbpass.admission.extents import Extent
from qbpass.admission.softmax import SpelledOut, spelled_out
from qbpass.models.dataflow import Dataflow
from qbpass.models.decoder import Decoder
from qbpass.models.graph_order import node_reads
from qbpass.models.interface import Interface

Dim = int | str | None
Shape = tuple[Dim, ...]


def node_name(node: onnx.NodeProto) -> str:
    """A node's name in every report: its first output tensor that has a name."""
    return str(next((output for output in node.output if output), node.name))


class Flow:
    """The dataflow of one decoder, its nodes in topological order (loading sees to that). Never changes the graph.

    A walk is bounded by positions in that order: its cost is that of the neighbourhood walked, not of the graph.
    """

    def __init__(self, model: onnx.ModelProto, interface: Interface) -> None:
        self.model = model
        self.interface = interface
        self.outputs = {value.name for value in model.graph.output}
        self.nodes: list[onnx.NodeProto] = list(model.graph.node)
        self._dataflow = Dataflow(model.graph)
        self._producer: dict[str, int] = {}
        self._consumers: dict[str, list[int]] = {}
        self._traces: dict[Call, CallTrace] = {}
        self.memory = Memory()
        self._extents: dict[str, tuple[Extent | None, ...] | None] = {}
        for position, node in enumerate(self.nodes):
            self._producer.update((tensor, position) for tensor in node.output if tensor)
            for tensor in dict.fromkeys(node_reads(node)):
                self._consumers.setdefault(tensor, []).append(position)

    @classmethod
    def of(cls, decoder: Decoder) -> Flow:
        """The dataflow of a decoder's graph."""
        return cls(decoder.model, decoder.interface)

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

    @property
    def inputs(self) -> list[str]:
        """Graph inputs that are no initializers, in the graph's order."""
        return list(self._dataflow.inputs)

    def origin(self, tensor: str) -> str:
        """The tensor that this one only renames: traced back through Identity, a Cast to the type that is there, and a
        Concat of one operand.
        """
        node = self.producer(tensor)
        while node is not None and self._only_renames(node):
            tensor = str(node.input[0])
            node = self.producer(tensor)
        return tensor

    def aliases(self, tensor: str) -> list[str]:
        """The tensor and those that only rename it."""
        found = [tensor]
        for name in found:
            found.extend(str(node.output[0]) for node in self.consumers(name) if self._only_renames(node))
        return found

    def _only_renames(self, node: onnx.NodeProto) -> bool:
        return (
            node.op_type == "Identity"
            or (node.op_type == "Concat" and len(node.input) == 1)
            or (node.op_type == "Cast" and self.elem_type(node.input[0]) == self.elem_type(node.output[0]) != 0)
        )

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
        """A value that is the same in every call: a small constant of the graph, or one worked out of constant sizes.

        None for activations, weights and external data.
        """
        stored = self._dataflow.constant(tensor)
        if stored is not None:
            return stored
        values = [value for trace in self.traces if (value := trace.value(tensor)) is not None]
        first = values[0] if len(values) == len(CALLS) else None
        if first is None or any(v.shape != first.shape or v.tobytes() != first.tobytes() for v in values):
            return None
        return first

    def scalar(self, tensor: str) -> float | None:
        """The value of a constant with exactly one element."""
        value = self.constant(tensor)
        return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None

    def spelled_out_softmax(self, node: onnx.NodeProto) -> SpelledOut | None:
        """The nodes of a softmax that ends in this Div, where they are its definition and no more."""
        return spelled_out(node, self.producer, self.constant)

    def trace(self, call: Call) -> CallTrace:
        """Shapes, and the values of sizes and masks, in a call of that size; each call is traced once."""
        if call not in self._traces:
            self._traces[call] = CallTrace(self.model, self.interface, call, self.memory)
        return self._traces[call]

    @property
    def traces(self) -> list[CallTrace]:
        """The calls that sizes are read off."""
        return [self.trace(call) for call in CALLS]

    def extents(self, tensor: str) -> tuple[Extent | None, ...] | None:
        """Every dimension as a sum of queries, past and a constant (None where it is none); None: rank unknown."""
        if tensor not in self._extents:
            shapes = [shape for trace in self.traces if (shape := trace.shape(tensor)) is not None]
            whole = len(shapes) == len(CALLS) and len({len(shape) for shape in shapes}) == 1
            dims = zip(*shapes, strict=True)
            fitted = tuple(fit_extent(sizes, self._symbols) for sizes in dims) if whole else None
            self._extents[tensor] = fitted
        return self._extents[tensor]

    @cached_property
    def _symbols(self) -> dict[str, list[int]]:
        """Sizes in CALLS of every symbol that an input's shape names."""
        return {name: [trace.symbols[name] for trace in self.traces] for name in self.traces[0].symbols}

    def shape(self, tensor: str) -> Shape | None:
        """Dimensions for reports and comparisons: an int, a sum such as "past + queries", or None where unknown."""
        extents = self.extents(tensor)
        return None if extents is None else tuple(None if e is None else _readable(e) for e in extents)

    def trace_shape(self, tensor: str) -> tuple[int | None, ...] | None:
        """The shape in the first of CALLS."""
        return self.traces[0].shape(tensor)

    def elem_type(self, tensor: str) -> int:
        """onnx.TensorProto.DataType; 0 (UNDEFINED) where unknown."""
        return self.traces[0].elem_type(tensor)

    def extent(self, tensor: str, axis: int) -> Extent | None:
        """One dimension in terms of queries and past; None where the rank or the dimension is unknown."""
        extents = self.extents(tensor)
        return None if extents is None or not -len(extents) <= axis < len(extents) else extents[axis]


def _readable(extent: Extent) -> int | str:
    value = extent.value()
    return str(extent) if value is None else value
