"""What a fused operator's own bounds and its masks let a query read: bias, order, windows."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from qbpass.admission.calls.call import CALLS, Call
from qbpass.admission.checks import bias_not_mask, key_extent, not_causal, sliding_window
from qbpass.admission.dataflow import node_name
from qbpass.admission.fused.subject import FusedSubject
from qbpass.admission.mask_flow import LARGE, bias_source
from qbpass.admission.mask_values import LONG_CALL, hidden_before
from qbpass.admission.report import Diagnostic


def check_bias(subject: FusedSubject) -> Diagnostic | None:
    """BIAS_NOT_MASK: what is added to the scores is neither boolean nor zeros and large negative numbers."""
    added = subject.tensor(subject.reading.added)
    if added is None or subject.flow.elem_type(added) == TensorProto.BOOL:
        return None
    source = bias_source(added, subject.flow)
    if source is None:
        return None
    node = subject.flow.producer(source)
    evidence = {"term": added, "source": source, "operator": node.op_type if node else "graph input or weight"}
    evidence["node"] = node_name(node) if node else ""
    message = f"{added!r} is added to the scores and is not a mask of 0 and -inf"
    return subject.refuse(bias_not_mask.CODE, message, **evidence)


def check_first_key(subject: FusedSubject) -> Diagnostic | None:
    """KEY_EXTENT: a causal bound that starts at the first key, over keys that hold a past."""
    if not subject.reading.from_first_key or subject.tie.pair is None or subject.tie.pair.past_key is None:
        return None
    message = "is_causal without a past operand lets query i read keys 0 to i: behind a past, not its own key"
    return subject.refuse(key_extent.CODE, message, keys=subject.tensors.get("k"), past=subject.tie.pair.past_key)


def check_causal(subject: FusedSubject) -> Diagnostic | None:
    """NOT_CAUSAL: neither the operator nor its mask is shown to keep a query off later keys."""
    reading = subject.reading
    if reading.causal or subject.tie.other is not None or check_bias(subject) is not None:
        return None
    masks = _masks(subject)
    if not masks:
        return subject.refuse(not_causal.CODE, "neither the operator nor a mask keeps a query off the later ones' keys")
    for call in CALLS:
        allowed = readable_keys(subject, call)
        if allowed is None:
            message = f"mask {masks[-1]!r} can't be worked out from sizes and positions, so it can't be shown causal"
            return subject.refuse(not_causal.CODE, message, masks=masks)
        for row in range(call.queries):
            later = [int(key) for key in allowed[row].nonzero()[0] if key > call.past + row]
            if later:
                message = f"query {row} of {call.queries} behind {call.past} rows may read key {later[0]}, a later one"
                evidence = {"masks": masks, "query": row, "past": call.past, "keys": later}
                return subject.refuse(not_causal.CODE, message, **evidence)
    return None


def ordered_by_its_mask(subject: FusedSubject) -> bool:
    """Whether the operator's mask alone is shown to keep every query off later keys."""
    for call in CALLS if _masks(subject) else ():
        allowed = readable_keys(subject, call)
        if allowed is None or np.any(
            allowed & (np.arange(call.extent)[None] > call.past + np.arange(call.queries)[:, None])
        ):
            return False
    return bool(_masks(subject))


def check_window(subject: FusedSubject) -> Diagnostic | None:
    """SLIDING_WINDOW: by attribute, or by the mask."""
    reading = subject.reading
    names = ("local_window_size", "left_window_size", "right_window_size", "sliding_window_cache", "window")
    evidence: dict[str, Any] = {name: reading.features[name] for name in names if name in reading.features}
    if reading.window is not None or evidence.get("right_window_size"):
        sizes = ", ".join(f"{name} {value}" for name, value in evidence.items())
        return subject.refuse(sliding_window.CODE, f"the operator bounds keys from both sides ({sizes})", **evidence)
    masks = _masks(subject)
    if subject.tie.other is not None or not masks or check_bias(subject) is not None:
        return None
    for call in (*CALLS, LONG_CALL):
        allowed = readable_keys(subject, call)
        hidden = None if allowed is None else hidden_before(allowed, call)
        if hidden is not None:
            row, key = hidden
            message = f"the mask hides key {key} from query {row} of {call.queries} behind {call.past} rows (a window)"
            return subject.refuse(sliding_window.CODE, message, masks=masks, query=row, key=key, past=call.past)
    return None


def readable_keys(subject: FusedSubject, call: Call) -> np.ndarray[Any, Any] | None:
    """(queries, keys) bool: what the masks leave each query to read; None where one can't be worked out."""
    allowed = np.ones((1, 1, call.queries, call.extent), bool)
    for mask in _masks(subject):
        value = subject.flow.trace(call).value(mask)
        if value is None:
            return None
        try:
            allowed = allowed & _allowed(value)
        except ValueError:  # not broadcastable to the scores
            return None
    return allowed[0, 0] if allowed.shape == (1, 1, call.queries, call.extent) else None


def _masks(subject: FusedSubject) -> list[str]:
    """What tells keys of a query apart. Lengths alone (rank 1) only cut padding off."""
    key_mask = subject.tensor(subject.reading.key_mask)
    if key_mask is not None and subject.node.rank(key_mask) == 1:
        key_mask = None
    return [tensor for tensor in (subject.tensor(subject.reading.added), key_mask) if tensor is not None]


def _allowed(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Integers: (streams, keys) or (streams, queries, keys), 0 for a hidden key. Others: as they meet the scores."""
    allowed: np.ndarray[Any, Any] = value
    if value.dtype.kind in "iu":
        allowed = (value[:, None, None] if value.ndim == 2 else value[:, None]) != 0
    elif value.dtype.kind == "f":
        allowed = value > LARGE
    return allowed
