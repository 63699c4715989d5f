"""What a graph does with a cache it takes: which output is its successor, and how the one becomes the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

import onnx

from qbpass.models.attention_reads import CUTS, STOPS
from qbpass.models.dataflow import Dataflow, Use, int_attribute
from qbpass.models.fused_slots import is_softmax

# Operators that give out the same elements in another shape or type.
LAYOUT = frozenset(
    {
        "Identity", "Cast", "CastLike", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "QuantizeLinear",
        "DequantizeLinear",
    }
)  # fmt: skip


class Update(Enum):
    """How a past becomes its present."""

    APPENDED = auto()  # Concat(past, new rows)
    PREPENDED = auto()  # Concat(new rows, past)
    SHIFTED = auto()  # rows are appended and others dropped
    SCATTERED = auto()  # new rows are written into a buffer of fixed length
    COMPUTED = auto()  # by arithmetic: a state, or a buffer filled by products with a 0/1 mask
    NEW_ROWS = auto()  # the graph gives out the new rows alone
    ABSENT = auto()  # rows are joined, and the graph does not give them out
    PASSED = auto()  # never changed


_IN_PLACE = frozenset({Update.SCATTERED, Update.COMPUTED})  # the length stays


@dataclass(frozen=True)
class Successor:
    """axis: the past's own axis that rows are joined along, where one Concat says it."""

    present: str | None
    update: Update
    axis: int | None = None


def find_successor(flow: Dataflow, past: str, reads: Sequence[Sequence[Use]] = ()) -> Successor:
    """The nearest output computed from `past` through no product, softmax, attention or loop, and how.

    reads: ways from `past` to the attentions that read it. Where no output is reached they tell rows that are joined
    and kept back from a cache that is only read.
    """
    passed = past if past in flow.outputs else None
    for step in flow.steps(past, lambda n, _: not _ends(flow, n)):
        for name in () if _ends(flow, step.node) else step.node.output:
            if name in flow.outputs:
                update, axis = _update(flow, step.path())
                if update is Update.PASSED:
                    passed = passed or name
                elif update not in _IN_PLACE or same_form(flow, past, name):
                    return Successor(name, update, axis)
    for path in reads:
        update, axis = _update(flow, path[:-1])
        if update not in (Update.PASSED, Update.COMPUTED):
            new = _new_rows(flow, path)
            return Successor(new, Update.NEW_ROWS if new else Update.ABSENT, axis)
    return Successor(passed, Update.PASSED)


def same_form(flow: Dataflow, past: str, present: str) -> bool:
    """Whether two tensors have the same type and rank, and no fixed dimension in which they differ."""
    before, after = flow.shape(past), flow.shape(present)
    if flow.elem_type(past) != flow.elem_type(present):
        return False
    if before is None or after is None:
        return True
    pairs = list(zip(before, after, strict=False))
    return len(before) == len(after) and all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))


def is_mixed(flow: Dataflow, path: Sequence[Use]) -> bool:
    """Whether a tensor is computed with values of another input on its way, as a mask over a buffer is.

    The condition of a Where does not count: rows that are masked away are still rows of the cache.
    """
    return any(
        name in flow.values
        for node, operand in path
        if node.op_type not in LAYOUT | CUTS
        for at, name in enumerate(node.input)
        if at != operand and (node.op_type != "Where" or at > 0)
    )


def _ends(flow: Dataflow, node: onnx.NodeProto) -> bool:
    return node.op_type in STOPS or is_softmax(node, flow)


def _update(flow: Dataflow, path: Sequence[Use]) -> tuple[Update, int | None]:
    """From the operators on the way that give out more than the same elements in another shape."""
    joins = [use for use in path if use[0].op_type == "Concat" and _live_beside(flow, *use)]
    if any(_scatters(flow, *use) for use in path):
        return Update.SCATTERED, None
    if any(node.op_type not in LAYOUT | CUTS | {"Concat"} for node, _ in path):
        return Update.COMPUTED, None
    if not joins:
        return Update.PASSED, None
    node, operand = joins[0]
    as_it_is = all(step.op_type in ("Identity", "Cast") for step, _ in path[: path.index(joins[0])])
    axis = int_attribute(node, "axis") if as_it_is else None
    if any(node.op_type in CUTS for node, _ in path):
        return Update.SHIFTED, axis
    return (Update.APPENDED if operand == 0 else Update.PREPENDED), axis


def _scatters(flow: Dataflow, node: onnx.NodeProto, operand: int) -> bool:
    if node.op_type == "Where":  # a choice between new rows and old ones, not between rows and zeros
        return operand > 0 and len(node.input) == 3 and node.input[3 - operand] in flow.activations
    return node.op_type in ("ScatterND", "ScatterElements", "Scatter", "TensorScatter")


def _live_beside(flow: Dataflow, node: onnx.NodeProto, operand: int) -> bool:
    return any(name in flow.activations for number, name in enumerate(node.input) if number != operand)


def _new_rows(flow: Dataflow, path: Sequence[Use]) -> str | None:
    """The output that holds what a Concat on the way joins to the past."""
    for node, operand in path:
        for number, name in enumerate(node.input) if node.op_type == "Concat" else ():
            if number != operand:
                found = given_out(flow, flow.source(name, frozenset({"Identity", "Cast"})))
                if found is not None:
                    return found
    return None


def given_out(flow: Dataflow, tensor: str) -> str | None:
    """The graph output that carries `tensor`, directly or through operators that only change its layout."""
    if tensor in flow.outputs:
        return tensor
    for node, _ in flow.forward(tensor, lambda n, _: n.op_type in LAYOUT):
        if node.op_type in LAYOUT and node.output[0] in flow.outputs:
            return str(node.output[0])
    return None
