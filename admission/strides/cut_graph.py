"""A part of a graph as a model of its own, for one call: sizes of what lies outside it are constants there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qbpass.admission.softmax import spelled_out
from qbpass.admission.strides.elements import UntracedError
from qbpass.admission.strides.node_kinds import SIZES
from qbpass.models.graph_order import node_reads

#: Shape of a tensor in the call. Raises UntracedError where it is not known.
SizeOf = Callable[[str], Sequence[int]]

#: Nodes of one part. An attention written query by query has about ten for each query.
PART_LIMIT = 4096
#: Bytes of a constant that a part may hold: a mask of 4,096 keys by 4,096 has 16 MiB as booleans.
CONSTANT_LIMIT = 1 << 25


class GraphCutter:
    """Cuts parts out of one graph. The graph is not changed."""

    def __init__(self, model: onnx.ModelProto, nodes: Iterable[onnx.NodeProto] | None = None) -> None:
        """`nodes` in topological order stand in for the graph's own, where given."""
        self._model_proto = model
        self._opsets = list(model.opset_import)
        self._ir_version = model.ir_version
        self.nodes = list(model.graph.node) if nodes is None else list(nodes)
        self.constants: dict[str, TensorProto] = {tensor.name: tensor for tensor in model.graph.initializer}
        self._producer = {name: at for at, node in enumerate(self.nodes) for name in node.output if name}

    def with_nodes(self, nodes: Iterable[onnx.NodeProto], constants: Iterable[TensorProto]) -> GraphCutter:
        """The same graph with other nodes, and more constants."""
        other = GraphCutter(self._model_proto, nodes)
        other.constants = {**self.constants, **{tensor.name: tensor for tensor in constants}}
        return other

    def cut(self, outputs: Sequence[str], leaves: Collection[str], size_of: SizeOf) -> onnx.ModelProto:
        """What computes `outputs` from `leaves`, which become inputs if they are reached.

        Raises UntracedError where it depends on anything but leaves, sizes and constants.
        """
        nodes: dict[int, onnx.NodeProto] = {}
        constants: dict[str, TensorProto] = {}
        reached: dict[str, None] = {}
        pending = list(outputs)
        while pending:
            tensor = pending.pop()
            if tensor in leaves:
                reached[tensor] = None
                continue
            at = self._producer.get(tensor)
            if tensor in constants or (at is not None and at in nodes):
                continue
            if at is None:
                constants[tensor] = self._constant(tensor)
                continue
            node = self.nodes[at]
            if node.op_type in SIZES and not self._computed_from(leaves, node.input[0]):
                constants[tensor] = _size(node, size_of(node.input[0]))
                continue
            nodes[at] = node = self._as_softmax(node)
            pending.extend(node_reads(node))
            if len(nodes) > PART_LIMIT:
                raise UntracedError(f"takes more than {PART_LIMIT} nodes")
        return self._model([nodes[at] for at in sorted(nodes)], list(constants.values()), list(reached), outputs)

    def _as_softmax(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """A division that ends a softmax spelled out, as the Softmax node that it is the definition of."""
        spelled = spelled_out(node, self._made_by, self._small_constant)
        return node if spelled is None else helper.make_node("Softmax", [spelled.scores], list(node.output), axis=-1)

    def _made_by(self, tensor: str) -> onnx.NodeProto | None:
        at = self._producer.get(tensor)
        return None if at is None else self.nodes[at]

    def _small_constant(self, tensor: str) -> np.ndarray | None:
        proto = self.constants.get(tensor)
        known = proto is not None and proto.data_location != TensorProto.EXTERNAL and proto.ByteSize() <= CONSTANT_LIMIT
        return numpy_helper.to_array(proto) if proto is not None and known else None

    def _computed_from(self, leaves: Collection[str], tensor: str) -> bool:
        """Whether a leaf takes part in `tensor`."""
        seen, pending = {tensor}, [tensor]
        while pending:
            name = pending.pop()
            if name in leaves:
                return True
            at = self._producer.get(name)
            fresh = [read for read in node_reads(self.nodes[at]) if read not in seen] if at is not None else []
            seen.update(fresh)
            pending.extend(fresh)
        return False

    def _constant(self, tensor: str) -> TensorProto:
        proto = self.constants.get(tensor)
        if proto is None:
            raise UntracedError(f"depends on {tensor!r}, which is neither an operand of the attention nor a size")
        if proto.data_location == TensorProto.EXTERNAL or proto.ByteSize() > CONSTANT_LIMIT:
            raise UntracedError(f"depends on the weight {tensor!r}")
        return proto

    def _model(
        self,
        nodes: list[onnx.NodeProto],
        constants: list[TensorProto],
        inputs: Sequence[str],
        outputs: Sequence[str],
    ) -> onnx.ModelProto:
        graph = helper.make_graph(
            nodes,
            "part",
            [helper.make_empty_tensor_value_info(name) for name in inputs],
            [helper.make_empty_tensor_value_info(name) for name in outputs],
            constants,
        )
        return helper.make_model(graph, opset_imports=self._opsets, ir_version=self._ir_version)


def _size(node: onnx.NodeProto, shape: Sequence[int]) -> TensorProto:
    """What Shape or Size returns for a tensor of that shape."""
    if node.op_type == "Size":
        return numpy_helper.from_array(np.array(np.prod(shape, dtype=np.int64)), node.output[0])
    bounds = {entry.name: entry.i for entry in node.attribute}
    chosen = list(shape)[bounds.get("start", 0) : bounds.get("end", len(shape))]
    return numpy_helper.from_array(np.array(chosen, np.int64), node.output[0])
