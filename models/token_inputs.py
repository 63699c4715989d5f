"""The inputs that are fed anew in every call: token ids, mask, positions, counts of rows. Told apart by dataflow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from qbpass.models.attention_reads import STOPS
from qbpass.models.dataflow import FLOATS, FUSED_ATTENTION, INTEGERS, SHAPE_OPS, Dataflow
from qbpass.models.findings import Findings
from qbpass.models.fused_slots import is_softmax, operator, takes_count, takes_positions

_RESHAPING = frozenset({"Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Flatten"})
# From positions to angles: no comparison (that is a mask) and no CumSum (that is positions counted from a mask).
_ANGLES = _RESHAPING | {"Add", "Sub", "Mul", "Div", "Clip", "Transpose", "Concat", "MatMul", "Einsum", "Slice", "Tile"}
_EMBEDS = frozenset({"Gather", "GatherND", "GatherBlockQuantized"})
_PICKS = _EMBEDS | {"GatherElements"}
_PICKS_LOGITS = frozenset({"Neg", "Slice", "Gather", "Range", "Sub"})


@dataclass(frozen=True)
class TokenInputs:
    """unknown: inputs of none of these parts, in the graph's order."""

    ids: str | None
    mask: str | None
    positions: str | None
    counters: tuple[str, ...]
    unknown: tuple[str, ...]


def find_token_inputs(flow: Dataflow, names: Sequence[str], vocabulary: int | None, findings: Findings) -> TokenInputs:
    """The parts of `names`, inputs that are no caches and no states. NO_INPUT_IDS goes to `findings`."""
    ids = _find_input_ids(flow, names, vocabulary)
    if ids is None:
        findings.add(
            "NO_INPUT_IDS",
            "no integer input picks rows of an embedding table: export the model with token ids (input_ids) as input",
            *(name for name in names if flow.elem_type(name) in INTEGERS),
        )
    rest = [name for name in names if name != ids]
    positions = _find_positions(flow, rest)
    rest = [name for name in rest if name != positions]
    mask = _find_mask(flow, rest)
    rest = [name for name in rest if name != mask]
    counters = tuple(name for name in rest if _is_counter(flow, name))
    return TokenInputs(ids, mask, positions, counters, tuple(name for name in rest if name not in counters))


def _find_input_ids(flow: Dataflow, names: Sequence[str], vocabulary: int | None) -> str | None:
    """The integer input that picks rows of an embedding table; of several, the one whose table has a row a token."""
    rows = {name: table for name in names if flow.elem_type(name) in INTEGERS and (table := _table_rows(flow, name))}
    return max(rows, key=lambda name: (rows[name] == vocabulary, rows[name]), default=None)


def _table_rows(flow: Dataflow, name: str) -> int | None:
    for node, place in flow.forward(name, lambda n, _: n.op_type in _RESHAPING):
        table = None
        if node.op_type in _EMBEDS and place == 1:
            table = flow.weight_dims(node.input[0])
        elif operator(node) == ("com.microsoft", "EmbedLayerNormalization") and place == 0 and len(node.input) > 2:
            table = flow.weight_dims(node.input[2])
        if table is not None and len(table) == 2:
            return table[0]
    return None


def _find_positions(flow: Dataflow, names: Sequence[str]) -> str | None:
    """The input that becomes angles, rather than one that picks rows of a table; of those, the longest table's."""
    found = {name: rows for name in names if (rows := _positions_in_reach(flow, name))}
    return max(found, key=lambda name: (_rank(flow, name) in (None, 2), found[name]), default=None)


def _positions_in_reach(flow: Dataflow, name: str) -> int:
    """0: no positions. Else how many there may be: the rows of a table (1: unknown), 2**63 where they become angles."""
    if flow.elem_type(name) not in INTEGERS or _rank(flow, name) == 0:
        return 0
    for node, place in flow.forward(name, lambda n, at: n.op_type in _ANGLES or (n.op_type in _PICKS and at == 0)):
        if node.op_type in ("Cos", "Sin") or takes_positions(node, place):
            return 2**63
        if node.op_type in _PICKS and place == 1 and node.input[0] not in flow.values:
            table = flow.weight_dims(node.input[0])
            if table is None:
                return 1  # a table repeated for every row of the batch
            if len(table) == 2:
                return table[0]
    return 0


def _find_mask(flow: Dataflow, names: Sequence[str]) -> str | None:
    """A rank-2 input; of several, the first that attention can be seen to depend on."""
    masks = [
        name
        for name in names
        if _rank(flow, name) in (None, 2) and flow.elem_type(name) in INTEGERS | FLOATS | {TensorProto.BOOL}
    ]
    return max(masks, key=lambda name: reaches_attention(flow, name), default=None)


def reaches_attention(flow: Dataflow, name: str) -> bool:
    """Whether a softmax or a fused attention depends on `name`, be it on its size alone, and not through a product."""
    return any(
        is_softmax(node, flow) or node.op_type in FUSED_ATTENTION
        for node, _ in flow.forward(name, lambda n, _: n.op_type not in STOPS - SHAPE_OPS and not is_softmax(n, flow))
    )


def _is_counter(flow: Dataflow, name: str) -> bool:
    """An integer input of rank 0 or 1 that says how many rows of a cache count, or where new rows go."""
    if flow.elem_type(name) not in INTEGERS or _rank(flow, name) not in (0, 1):
        return False
    return any(takes_count(node, place) or is_softmax(node, flow) for node, place in flow.forward(name, _indexes))


def _indexes(node: onnx.NodeProto, operand: int) -> bool:
    return node.op_type not in STOPS and not takes_count(node, operand)


def counts_logits(flow: Dataflow, name: str) -> bool:
    """Whether an input looks like a count of logits to keep."""
    return any(node.op_type in _PICKS_LOGITS for node, _ in flow.forward(name, lambda *_: False))


def _rank(flow: Dataflow, name: str) -> int | None:
    shape = flow.shape(name)
    return None if shape is None else len(shape)
