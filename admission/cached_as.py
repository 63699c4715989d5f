"""How a KV pair's past and present are the rows that attention joins: the same elements, or the same in a wider type.

A float16 graph whose inputs and outputs were kept in float32 narrows its past, joins it with the new rows in float16,
and widens what it gives out. What was widened is narrowed without a change, so the joined rows are all that is cached.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto

from qbpass.admission.cache_ties import CacheTie
from qbpass.admission.dataflow import Flow

#: Every number of the first type is one of each of the others.
_WIDER: dict[int, frozenset[int]] = {
    TensorProto.FLOAT16: frozenset({TensorProto.FLOAT, TensorProto.DOUBLE}),
    TensorProto.BFLOAT16: frozenset({TensorProto.FLOAT, TensorProto.DOUBLE}),
    TensorProto.FLOAT: frozenset({TensorProto.DOUBLE}),
}


def new_rows(tie: CacheTie, flow: Flow) -> str | None:
    """What is concatenated behind the past; None where the tie's tensor is made in another way."""
    node = _join(tie, flow)
    return None if node is None else str(node.input[1])


def joined_past(tie: CacheTie, flow: Flow) -> str | None:
    """What is concatenated in front of the new rows, where it is the past narrowed to their type; else None."""
    node = _join(tie, flow)
    return None if node is None or flow.origin(node.input[0]) == _past(tie) else str(node.input[0])


def gives_out(present: str, rows: str, flow: Flow) -> bool:
    """Whether the present is these rows, or these rows widened."""
    return flow.origin(rows) in (flow.origin(present), _cast_from(present, flow, widened=True))


def gives_out_by(node: onnx.NodeProto, present: str, flow: Flow) -> bool:
    """Whether the node is what widens the joined rows to the present."""
    return node.op_type == "Cast" and flow.origin(present) == node.output[0]


def _join(tie: CacheTie, flow: Flow) -> onnx.NodeProto | None:
    node, past = flow.producer(flow.origin(tie.tensor)), _past(tie)
    if node is None or node.op_type != "Concat" or len(node.input) != 2 or past is None:
        return None
    narrowed = _cast_from(node.input[0], flow, widened=False) == past and gives_out(_present(tie), tie.tensor, flow)
    return node if narrowed or flow.origin(node.input[0]) == past else None


def _cast_from(tensor: str, flow: Flow, *, widened: bool) -> str | None:
    """The tensor that this one is a Cast of, to a wider type or a narrower one; None where it is none."""
    node = flow.producer(flow.origin(tensor))
    if node is None or node.op_type != "Cast":
        return None
    types = flow.elem_type(node.input[0]), flow.elem_type(node.output[0])
    narrow, wide = types if widened else types[::-1]
    return flow.origin(node.input[0]) if wide in _WIDER.get(narrow, frozenset()) else None


def _past(tie: CacheTie) -> str | None:
    return tie.pair.past_value if tie.role == "value" else tie.pair.past_key


def _present(tie: CacheTie) -> str:
    return str(tie.pair.present_value if tie.role == "value" else tie.pair.present_key)
