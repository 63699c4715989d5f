"""How a tensor is read by attention: as keys or as values, and by which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import onnx

from qbpass.models.dataflow import CONTRACTIONS, FUSED_ATTENTION, SHAPE_OPS, Dataflow, Step, Use, int_attribute
from qbpass.models.fused_slots import fused_slots, has_operand, is_softmax, result

Role = Literal["key", "value"]
_ROLES: tuple[Role, Role] = ("key", "value")

_BODIES = frozenset({"If", "Loop", "Scan"})
STOPS = CONTRACTIONS | FUSED_ATTENTION | SHAPE_OPS | _BODIES | {"Softmax", "BiasSoftmax", "QLinearSoftmax"}
CUTS = frozenset({"Slice", "Gather", "Split", "GatherND", "GatherElements"})
# A projection by weights, as one lies between a latent cache and its keys and values.
_PROJECTIONS = CONTRACTIONS - {"Conv"}
# What may lie between a softmax and its product with the values: no Add, behind which lie other layers.
_OF_PROBABILITIES = frozenset(
    {
        "Identity", "Cast", "CastLike", "Where", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand", "Slice",
        "Split", "Concat", "Mul", "Div", "Sub", "Dropout", "QuantizeLinear", "DequantizeLinear",
    }
)  # fmt: skip


MOST_READS = 64  # of one tensor; layers that share a cache are fewer


@dataclass(frozen=True)
class Read:
    """One attention that reads a tensor.

    at: the position of its Softmax or fused node. path: the uses from the tensor to its product or fused node.
    present: what the fused node gives out for the past it takes here; None where it takes no past here.
    """

    role: Role
    at: int
    path: tuple[Use, ...]
    present: str | None = None

    @property
    def projected(self) -> bool:
        """Whether the tensor is multiplied by weights before it is keys or values."""
        return any(node.op_type in _PROJECTIONS for node, _ in self.path[:-1])

    @property
    def of_a_part(self) -> bool:
        """Whether a part of the tensor is cut out on the way, or the fused node does so."""
        node, _ = self.path[-1]
        slots = fused_slots(node)
        together = slots is not None and slots.past is not None and slots.past[0] == slots.past[1]
        return together or any(node.op_type in CUTS for node, _ in self.path)


def attention_reads(flow: Dataflow, tensor: str, projections: int = 0) -> list[Read]:
    """The attentions reached from `tensor`, the nearest first, MOST_READS at most.

    projections: how many products with constant weights a way may go through (1: latent caches, encoder states).
    """
    found: list[Read] = []
    depth: dict[str, int] = {}

    def enters(node: onnx.NodeProto, operand: int) -> bool:
        before = depth.get(node.input[operand], 0)
        through = before + (node.op_type in _PROJECTIONS)
        for name in node.output:
            depth[name] = min(through, depth.get(name, through))
        if node.op_type in _PROJECTIONS:
            return through <= projections and _by_weights(flow, node, operand)
        return node.op_type not in STOPS and not is_softmax(node, flow)

    for step in flow.steps(tensor, enters):
        found.extend(_reads_at(flow, step))
        if len(found) >= MOST_READS:
            break
    return found


def _reads_at(flow: Dataflow, step: Step) -> Iterator[Read]:
    node, operand = step.node, step.operand
    slots = fused_slots(node)
    if slots is not None:
        for number, role in enumerate(_ROLES):
            if slots.past is not None and slots.past[number] == operand:
                given = None if slots.present is None else result(node, slots.present[number])
                yield Read(role, flow.position(node), step.path(), given)
            elif slots.read is not None and slots.read[number] == operand:
                yield Read(role, flow.position(node), step.path())
    elif node.op_type in CONTRACTIONS and not _by_weights(flow, node, operand):
        reads = _product_role(flow, node, operand)
        if reads is not None:
            yield Read(*reads, step.path())


def _by_weights(flow: Dataflow, node: onnx.NodeProto, operand: int) -> bool:
    """Whether all that a product multiplies this operand by is constant."""
    others = [name for number, name in enumerate(node.input) if number != operand and name]
    return all(flow.is_constant(name) for name in others)


def _product_role(flow: Dataflow, node: onnx.NodeProto, operand: int) -> tuple[Role, int] | None:
    """Values are multiplied by the result of a softmax; keys make a product that a softmax reads."""
    other = node.input[1 - operand] if operand < 2 and len(node.input) > 1 else ""
    softmaxes = [flow.position(maker) for maker in _behind(flow, other) if is_softmax(maker, flow)]
    if softmaxes:
        return "value", min(softmaxes)
    for reader, _ in flow.forward(node.output[0], lambda n, _: n.op_type not in STOPS and not is_softmax(n, flow)):
        if is_softmax(reader, flow):
            return "key", flow.position(reader)
    return None


def _behind(flow: Dataflow, tensor: str) -> Iterator[onnx.NodeProto]:
    return flow.backward(tensor, lambda n: n.op_type in _OF_PROBABILITIES and not is_softmax(n, flow))


def is_buffered(read: Read) -> bool:
    """Whether a fused attention writes into a cache of fixed length here and is told how many rows are filled."""
    node, _ = read.path[-1]
    slots = fused_slots(node)
    return slots is not None and has_operand(node, slots.buffer)


def is_windowed(read: Read) -> bool:
    """Whether a fused attention keeps a window of its cache and drops the rows before it."""
    return int_attribute(read.path[-1][0], "sliding_window_cache") == 1
