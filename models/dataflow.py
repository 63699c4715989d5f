"""Who makes a tensor, who reads it, what it holds if constant: the questions every search of a graph asks."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from qbpass.models.graph_order import node_reads

FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})
INTEGERS = frozenset({TensorProto.INT64, TensorProto.INT32})

# Operators that mix a tensor's elements with another tensor's: where one stage of a decoder ends and the next begins.
CONTRACTIONS = frozenset(
    {
        "MatMul", "FusedMatMul", "Gemm", "Einsum", "Conv", "MatMulNBits", "MatMulBnb4", "MatMulInteger",
        "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul", "QGemm", "GemmFloat8", "MatMulFpQ4",
    }
)  # fmt: skip
# Operators that hold a whole attention, by name: operators of two domains share "Attention".
FUSED_ATTENTION = frozenset(
    {
        "Attention", "DecoderAttention", "DecoderMaskedMultiHeadAttention", "DecoderMaskedSelfAttention",
        "DynamicSparseAttention", "GroupQueryAttention", "LinearAttention", "LongformerAttention",
        "MultiHeadAttention", "PackedAttention", "PackedMultiHeadAttention", "PagedAttention", "QAttention",
        "QOrderedAttention", "SparseAttention", "SparsePagedAttention",
    }
)  # fmt: skip
# Their results say how large a tensor is, not what is in it.
SHAPE_OPS = frozenset({"Shape", "Size"})

WALK_LIMIT = 4096  # steps of one walk; the longest real one (values repeated for a group of heads) has about 60
LEAST_STEPS = 200_000  # of all walks together; a real model of 100 layers takes some 40,000
_SOURCE_LIMIT = 256  # operators that `source` looks through

Dim = int | str | None
Use = tuple[onnx.NodeProto, int]  # a node, and the number of one of its operands


@dataclass(frozen=True)
class Step:
    """A node that a forward walk reached, the operand it was reached at, and the step it was reached from."""

    node: onnx.NodeProto
    operand: int
    before: Step | None

    def path(self) -> tuple[Use, ...]:
        """The uses from the walk's start to this one."""
        uses = [(self.node, self.operand)]
        step = self.before
        while step is not None:
            uses.append((step.node, step.operand))
            step = step.before
        return tuple(uses[::-1])


class Dataflow:
    """A graph's nodes, indexed by the tensors they make and read. The top level only; subgraphs are not entered.

    All walks together take a bounded number of steps, in proportion to the graph: a graph from a stranger can be so
    tangled that searching it would take hours. `exhausted` says that a walk ended for that reason.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.initializers = {t.name: t for t in graph.initializer}
        self.inputs = {v.name: v for v in graph.input if v.name not in self.initializers}
        self.outputs = {v.name: v for v in graph.output}
        self._values = {v.name: v for v in (*graph.value_info, *graph.input, *graph.output)}
        self._maker: dict[str, int] = {}
        self._readers: dict[str, list[tuple[int, int]]] = {}
        self._shapes: dict[str, tuple[Dim, ...] | None] = {}
        self._steps_left = LEAST_STEPS + 2 * len(graph.node)
        self.exhausted = False
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

    def readers(self, tensor: str) -> list[Use]:
        """(node, operand index) for every use of `tensor`, in topological order."""
        return [(self.graph.node[index], operand) for index, operand in self._readers.get(tensor, [])]

    def source(self, tensor: str, through: frozenset[str] = frozenset({"Identity"})) -> str:
        """`tensor` traced back through operators that only pass on their first operand."""
        for _ in range(_SOURCE_LIMIT):
            node = self.maker(tensor)
            if node is None or node.op_type not in through:
                break
            tensor = node.input[0]
        return tensor

    def is_constant(self, tensor: str) -> bool:
        """Whether `tensor` is an initializer or a Constant, or made from nothing else."""
        return tensor in self.initializers or (tensor in self._maker and tensor not in self.activations)

    @cached_property
    def activations(self) -> frozenset[str]:
        """Tensors that depend on a graph input. (An initializer that is also listed as an input is a constant.)"""
        return self.dependents(self.inputs)

    @cached_property
    def values(self) -> frozenset[str]:
        """Tensors that depend on more of a graph input than its size."""
        return self.dependents(self.inputs, through_sizes=False)

    def dependents(self, tensors: Iterable[str], through_sizes: bool = True) -> frozenset[str]:
        """Every tensor that is one of `tensors` or computed from one, through control-flow bodies, too.

        through_sizes: also those that depend on nothing but a tensor's size.
        """
        live = set(tensors)
        for reads, node in zip(self._reads, self.graph.node, strict=True):
            if not live.isdisjoint(reads) and (through_sizes or node.op_type not in SHAPE_OPS):
                live.update(output for output in node.output if output)
        return frozenset(live)

    def inputs_of(self, tensor: str) -> frozenset[str]:
        """The graph inputs that `tensor` is computed from."""
        needed = {tensor}
        for reads, node in zip(reversed(self._reads), reversed(self.graph.node), strict=True):
            if not needed.isdisjoint(node.output):
                needed.update(reads)
        return frozenset(needed & self.inputs.keys())

    @cached_property
    def _reads(self) -> list[tuple[str, ...]]:
        return [tuple(node_reads(node)) for node in self.graph.node]

    def constant(self, tensor: str, largest: int = 4096) -> np.ndarray[Any, Any] | None:
        """The value of a small constant held in the graph; None where it is computed, large, text or stored outside."""
        tensor = self.source(tensor)
        node = self.maker(tensor)
        proto = self.initializers.get(tensor)
        if node is not None and node.op_type == "Constant":
            values = {a.name: a for a in node.attribute}
            if "value" in values:
                proto = values["value"].t
            else:
                found = onnx.helper.get_attribute_value(node.attribute[0]) if node.attribute else None
                return _numbers(np.asarray(found)) if isinstance(found, (int, float, list)) else None
        if proto is None or proto.data_location == TensorProto.EXTERNAL or math.prod(proto.dims) > largest:
            return None
        try:
            return _numbers(numpy_helper.to_array(proto))
        except (TypeError, ValueError):  # a damaged tensor: its bytes are not what its dims and type need
            return None

    def _stored(self, tensor: str) -> onnx.TensorProto | None:
        """An initializer, or the tensor of a Constant."""
        node = self.maker(tensor)
        if node is None or node.op_type != "Constant":
            return self.initializers.get(tensor)
        return next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)

    def weight_dims(self, tensor: str) -> list[int] | None:
        """Dims of a tensor made from a stored one, by a change of type, Transpose, or Reshape to a constant shape."""
        tensor = self.source(tensor, frozenset({"Identity", "Cast", "DequantizeLinear"}))
        stored = self._stored(tensor)
        if stored is not None:
            return list(stored.dims)
        node = self.maker(tensor)
        source = self._stored(self.source(node.input[0])) if node is not None and node.input else None
        if node is None or source is None:
            return None
        if node.op_type == "Transpose":
            axes = list(range(len(source.dims)))
            perm = ints_attribute(node, "perm") or axes[::-1]
            return [source.dims[axis] for axis in perm] if sorted(perm) == axes else None
        target = self.constant(node.input[1]) if node.op_type == "Reshape" and len(node.input) > 1 else None
        dims = [] if target is None or target.dtype.kind not in "iu" else [int(dim) for dim in target.reshape(-1)]
        return dims if dims and all(dim > 0 for dim in dims) else None

    def shape(self, tensor: str) -> list[Dim] | None:
        """The shape the file states: ints, names of symbols, None for unknown dims; None where the rank is unknown."""
        if tensor not in self._shapes:
            self._shapes[tensor] = _declared_shape(self._values.get(tensor))
        found = self._shapes[tensor]
        return None if found is None else list(found)

    def elem_type(self, tensor: str) -> int:
        """onnx.TensorProto.DataType the file states (UNDEFINED where it does not)."""
        value = self._values.get(tensor)
        return int(value.type.tensor_type.elem_type) if value is not None else 0

    def forward(self, tensor: str, enters: Callable[[onnx.NodeProto, int], bool]) -> Iterator[Use]:
        """Every (reader, operand index) reached from `tensor`; goes on behind the readers that `enters` accepts."""
        for step in self.steps(tensor, enters):
            yield step.node, step.operand

    def steps(self, tensor: str, enters: Callable[[onnx.NodeProto, int], bool]) -> Iterator[Step]:
        """As `forward`, the nearest first, each with the way it was reached by."""
        queue: deque[tuple[str, Step | None]] = deque([(tensor, None)])
        seen = {tensor}
        taken = 0
        while queue:
            name, before = queue.popleft()
            for index, operand in self._readers.get(name, ()):
                taken += 1
                if not self._may_step(taken):
                    return
                node = self.graph.node[index]
                step = Step(node, operand, before)
                yield step
                if enters(node, operand):
                    fresh = [output for output in node.output if output and output not in seen]
                    seen.update(fresh)
                    queue.extend((output, step) for output in fresh)

    def backward(self, tensor: str, enters: Callable[[onnx.NodeProto], bool]) -> Iterator[onnx.NodeProto]:
        """Every maker reached back from `tensor`, the nearest first; goes on before those that `enters` accepts."""
        queue, seen = deque([tensor]), {tensor}
        taken = 0
        while queue:
            node = self.maker(queue.popleft())
            if node is None:
                continue
            taken += 1
            if not self._may_step(taken):
                return
            yield node
            if enters(node):
                fresh = [name for name in node.input if name and name not in seen]
                seen.update(fresh)
                queue.extend(fresh)

    def _may_step(self, taken: int) -> bool:
        self._steps_left -= 1
        self.exhausted = self.exhausted or self._steps_left < 0
        return taken <= WALK_LIMIT and not self.exhausted


def _declared_shape(value: onnx.ValueInfoProto | None) -> tuple[Dim, ...] | None:
    if value is None or not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    return tuple(d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in dims)


def _numbers(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """None for text and for what has no order."""
    return None if value.dtype.kind in "OSUc" else value


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """The value of a node's attribute, or `default`."""
    for candidate in node.attribute:
        if candidate.name == name:
            return onnx.helper.get_attribute_value(candidate)
    return default


def ints_attribute(node: onnx.NodeProto, name: str) -> list[int] | None:
    """The value of a node's attribute where it is there and a list of integers."""
    for candidate in node.attribute:
        if candidate.name == name and candidate.type == onnx.AttributeProto.INTS:
            return list(candidate.ints)
    return None


def int_attribute(node: onnx.NodeProto, name: str) -> int | None:
    """The value of a node's attribute where it is there and an integer."""
    for candidate in node.attribute:
        if candidate.name == name and candidate.type == onnx.AttributeProto.INT:
            return int(candidate.i)
    return None
