"""How past and new rows become the rows that attention reads, and these the present.

Concat(past, new rows) along the keys, in the plainest case. ONNX Runtime's optimizer moves transposes through a Concat:
then past and new rows are joined in another order of axes and turned behind it. And a float16 graph whose inputs and
outputs were kept in float32 narrows its past, joins it with the new rows in float16, and widens what it gives out: what
was widened is narrowed without a change, so the joined rows are all that is cached.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from qbpass.admission.cache_ties import CacheTie
from qbpass.admission.dataflow import Flow
from qbpass.admission.site import STANDARD_AXES
from qbpass.models.dataflow import attribute

KEY_AXIS = 2  # of (1, Hkv, rows, d)
_TRANSPOSES = 4  # between a Concat and what attention reads
#: Every number of the first type is one of each of the others.
_WIDER: dict[int, frozenset[int]] = {
    TensorProto.FLOAT16: frozenset({TensorProto.FLOAT, TensorProto.DOUBLE}),
    TensorProto.BFLOAT16: frozenset({TensorProto.FLOAT, TensorProto.DOUBLE}),
    TensorProto.FLOAT: frozenset({TensorProto.DOUBLE}),
}


@dataclass(frozen=True)
class Join:
    """new: the rows behind the past. old: what is in front of them, where it is the past turned or narrowed.

    axes: the joined tensors' axis i is axis axes[i] of (1, Hkv, rows, d).
    """

    new: str | None = None
    old: str | None = None
    axes: tuple[int, ...] = STANDARD_AXES


def read_join(tie: CacheTie, flow: Flow) -> Join:
    """No new rows where the tie's tensor is made in another way, or along another axis."""
    concat, axes = turned_back(tie.tensor, flow)
    past = tie.pair.past_value if tie.role == "value" else tie.pair.past_key
    present = tie.pair.present_value if tie.role == "value" else tie.pair.present_key
    if concat is None or past is None or len(concat.input) != 2 or not joins_keys(concat, axes):
        return Join()
    old, new = map(str, concat.input)
    if axes == STANDARD_AXES and flow.origin(old) == past:
        return Join(new)
    narrowed = _cast_from(old, flow, widened=False) == past and gives_out(str(present), tie.tensor, flow)
    if (axes == STANDARD_AXES and narrowed) or (axes != STANDARD_AXES and _turned(old, flow) == (past, axes)):
        return Join(new, old, axes)
    return Join()


def joins_keys(concat: onnx.NodeProto, axes: tuple[int, ...]) -> bool:
    """Whether a Concat of tensors with those axes joins them along their rows; its file may say any axis."""
    axis = int(attribute(concat, "axis"))
    return -len(axes) <= axis < len(axes) and axes[axis] == KEY_AXIS


def turned_back(rows: str, flow: Flow) -> tuple[onnx.NodeProto | None, tuple[int, ...]]:
    """The Concat that `rows` are a transpose of, with its axes in terms of theirs; None where there is none."""
    node, axes = flow.producer(flow.origin(rows)), STANDARD_AXES
    for _ in range(_TRANSPOSES):
        if node is None or node.op_type != "Transpose" or len(perm := attribute(node, "perm", ())) != len(axes):
            break
        axes = tuple(axes[axis] for axis in np.argsort(perm))
        node = flow.producer(flow.origin(node.input[0]))
    return (node if node is not None and node.op_type == "Concat" else None), axes


def joined_in(rows: str, flow: Flow) -> list[str]:
    """The tensors from the Concat to `rows`: the same rows in other orders of axes."""
    found, node = [flow.origin(rows)], flow.producer(flow.origin(rows))
    while node is not None and node.op_type == "Transpose" and len(found) <= _TRANSPOSES:
        found.append(flow.origin(node.input[0]))
        node = flow.producer(found[-1])
    return [name for tensor in found for name in flow.aliases(tensor)]


def gives_out(present: str, rows: str, flow: Flow) -> bool:
    """Whether the present is these rows, or these rows widened."""
    return flow.origin(rows) in (flow.origin(present), _cast_from(present, flow, widened=True))


def gives_out_by(node: onnx.NodeProto, present: str, flow: Flow) -> bool:
    """Whether the node is what widens the joined rows to the present."""
    return node.op_type == "Cast" and flow.origin(present) == node.output[0]


def _turned(tensor: str, flow: Flow) -> tuple[str | None, tuple[int, ...]]:
    """What the tensor is a Transpose of, and its axes in terms of that."""
    node = flow.producer(flow.origin(tensor))
    if node is None or node.op_type != "Transpose":
        return None, ()
    return flow.origin(node.input[0]), tuple(attribute(node, "perm", ()))


def _cast_from(tensor: str, flow: Flow, *, widened: bool) -> str | None:
    """The tensor that this one is a Cast of, to a wider type or a narrower one; None where it is none."""
    node = flow.producer(flow.origin(tensor))
    if node is None or node.op_type != "Cast":
        return None
    types = flow.elem_type(node.input[0]), flow.elem_type(node.output[0])
    narrow, wide = types if widened else types[::-1]
    return flow.origin(node.input[0]) if wide in _WIDER.get(narrow, frozenset()) else None
