"""From an attention's operands back to the KV cache: which layer's keys or values they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import onnx

from qbpass.admission.dataflow import Flow
from qbpass.admission.walks import PRODUCTS, WALK_LIMIT, is_activation_product
from qbpass.models.contract import CachePair
from qbpass.models.dataflow import FLOATS, FUSED_ATTENTION

_WEIGHT_PRODUCTS = frozenset({"MatMulNBits", "MatMulBnb4", "MatMulInteger", "DynamicQuantizeMatMul", "Conv"})
_SIZES = frozenset({"Shape", "Size"})
_NORMS = frozenset(
    {
        *("LayerNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization", "RMSNormalization"),
        *("SkipSimplifiedLayerNormalization", "ReduceMean"),
    }
)
# A walk from an operand back to the KV cache ends here: what lies behind belongs to another layer, or is only a size.
_BARRIERS = PRODUCTS | _WEIGHT_PRODUCTS | _SIZES | _NORMS | FUSED_ATTENTION | {"Softmax"}
# From a past to the half or the heads of it that new rows are put to.
_TAKEN_OUT = frozenset({"Identity", "Concat", "Cast", "Split", "Squeeze", "Gather", "Slice", "Transpose", "Reshape"})
_STATES_RANK = 3  # (batch, rows, hidden) of an encoder


@dataclass(frozen=True)
class CacheTie:
    """Where an operand comes from: `tensor` holds the whole key or value (past and new rows) of one KV pair.

    projected: the operand is computed from it by a product with a weight, so it is not what is cached (a latent).
    """

    pair: CachePair
    role: str  # "key" | "value"; "either" where one tensor holds both
    tensor: str
    projected: bool = False


@dataclass(frozen=True)
class OtherStream:
    """An operand that comes from another stream: an encoder's cache or its hidden states."""

    layer: int | None
    tensor: str


class CacheTies:
    """Which tensors hold a KV pair's present key or value, and which hold another stream's."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._by_tensor: dict[str, CacheTie] = {}
        for pair in flow.interface.kv:
            stacked = pair.past_key is not None and pair.past_key == pair.past_value
            for role, past, present in (
                ("either" if stacked else "key", pair.past_key, pair.present_key),
                ("either" if stacked else "value", pair.past_value, pair.present_value),
            ):
                # The present itself, and whatever joins the past with new rows without being the present output.
                for tensor in (*_names(flow, present), *self._joins(past)):
                    self._by_tensor.setdefault(tensor, CacheTie(pair, role, tensor))
        self._others = _other_streams(flow)

    def find(self, operand: str) -> CacheTie | None:
        """The nearest tensor of the KV cache that `operand` is computed from, not through products or sizes."""
        return self._nearest(operand, _in_reach)

    def find_projected(self, operand: str) -> CacheTie | None:
        """A tensor of the KV cache that `operand` is computed from by a product with a weight."""
        for name in self._reached(operand, _in_reach):
            node = self._flow.producer(name)
            tie = self._nearest(node.input[0], _in_reach) if node is not None and self._projects(node) else None
            if tie is not None:
                return replace(tie, projected=True)
        return None

    def find_other_stream(self, operand: str) -> OtherStream | None:
        """Another stream's cache or states that `operand` is computed from, through products with weights, too."""
        found = next((name for name in self._reached(operand, self._passes) if name in self._others), None)
        return None if found is None else OtherStream(self._others[found], found)

    def _joins(self, past: str | None) -> list[str]:
        """Tensors in which new rows are put to the past, or to the half of it that is taken out first."""
        found: list[str] = []
        pending = [past] if past is not None else []
        for name in pending:
            for node in self._flow.consumers(name):
                if node.op_type == "Concat" and len(node.input) > 1:
                    found.append(str(node.output[0]))
                elif node.op_type in _TAKEN_OUT and len(pending) < WALK_LIMIT:
                    pending.extend(output for output in node.output if output)
        return found

    def _nearest(self, operand: str, passes: Callable[[onnx.NodeProto], bool]) -> CacheTie | None:
        return next((tie for name in self._reached(operand, passes) if (tie := self._by_tensor.get(name))), None)

    def _passes(self, node: onnx.NodeProto) -> bool:
        if node.op_type in PRODUCTS:
            return self._projects(node)
        return node.op_type != "Softmax" and node.op_type not in _SIZES | FUSED_ATTENTION

    def _projects(self, node: onnx.NodeProto) -> bool:
        """A product with a weight."""
        if node.op_type in PRODUCTS:
            return not is_activation_product(node, self._flow)
        return node.op_type in _WEIGHT_PRODUCTS

    def _reached(self, operand: str, passes: Callable[[onnx.NodeProto], bool]) -> list[str]:
        """`operand` and the activations it is computed from, nearest first; what holds a cache is not looked behind."""
        seen, order, pending = {operand}, [operand], [operand]
        while pending and len(seen) < WALK_LIMIT:
            tensor = pending.pop(0)
            node = self._flow.producer(tensor)
            if node is None or tensor in self._by_tensor or not passes(node):
                continue
            fresh = [name for name in node.input if name in self._flow.activations and name not in seen]
            seen.update(fresh)
            order.extend(fresh)
            pending.extend(fresh)
        return order


def _in_reach(node: onnx.NodeProto) -> bool:
    return node.op_type not in _BARRIERS


def _names(flow: Flow, tensor: str | None) -> list[str]:
    """The tensor under every name that it has in the graph."""
    return [] if tensor is None else flow.aliases(flow.origin(tensor))


def _other_streams(flow: Flow) -> dict[str, int | None]:
    """Inputs that hold another stream: cross caches with their layer, hidden states of rank 3 without one."""
    interface = flow.interface
    found: dict[str, int | None] = {}
    for pair in interface.cross_kv:
        found.update((name, pair.layer) for tensor in (pair.key, pair.value) for name in _names(flow, tensor))
    own = {name for pair in interface.kv for name in (pair.past_key, pair.past_value)}
    own |= {state.past for state in interface.states}
    for name in flow.inputs:
        if name not in own and name not in found and flow.elem_type(name) in FLOATS:
            shape = flow.trace_shape(name)
            if shape is not None and len(shape) == _STATES_RANK:
                found[name] = None
    return found
