"""What it does: refuses a mask that bounds keys from both sides.

Why it matters: under a sliding window the zero-weight rows lie in front of a query's keys, too, and the extent
rules that keep rows exact were measured with rows masked behind them only.

Example: `(key <= query) & (key > query - 4096)` in every other layer; `local_window_size=4096` of a fused operator.
"""

from __future__ import annotations

import onnx

from qbpass.admission.calls.call import CALLS
from qbpass.admission.dataflow import node_name
from qbpass.admission.mask_flow import COMPARISONS, bias_source, mask_nodes
from qbpass.admission.mask_values import LONG_CALL, allowed_keys, hidden_before
from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "SLIDING_WINDOW"
_ORDERS = COMPARISONS - {"Equal"}


def check(subject: Subject) -> Diagnostic | None:
    masks = [term for term in subject.added_terms if bias_source(term, subject.flow) is None]
    return _by_value(subject, masks) or _by_comparisons(subject, masks)


def _by_comparisons(subject: Subject, masks: list[str]) -> Diagnostic | None:
    """A window that no traced call is long enough for, or in a mask that can't be worked out."""
    known = bool(masks) and allowed_keys(masks, subject.flow, LONG_CALL) is not None
    bounding = _ORDERS if known else COMPARISONS | {"Trilu"}
    for mask in masks:
        nodes = mask_nodes(mask, subject.flow)
        bounds = [node for node in nodes if node.op_type in bounding and _varies_over_queries_and_keys(node, subject)]
        if len(bounds) > 1:
            compared = {node_name(node): [node.op_type, *node.input] for node in bounds}
            return subject.refuse(CODE, "the mask bounds keys from both sides (a sliding window)", comparisons=compared)
    return None


def _by_value(subject: Subject, masks: list[str]) -> Diagnostic | None:
    """A key before the query that the worked-out mask hides, in a short call or a long one."""
    for call in (*CALLS, LONG_CALL) if masks else ():
        allowed = allowed_keys(masks, subject.flow, call)
        hidden = None if allowed is None else hidden_before(allowed, call)
        if hidden is not None:
            row, key = hidden
            message = f"the mask hides key {key} from query {row} of {call.queries} behind {call.past} rows (a window)"
            return subject.refuse(CODE, message, masks=masks, query=row, key=key, past=call.past)
    return None


def _varies_over_queries_and_keys(node: onnx.NodeProto, subject: Subject) -> bool:
    """Unlike a padding mask, which varies along keys alone."""
    shape = subject.shape(node.output[0])
    if shape is None:
        return all(tensor in subject.flow.activations for tensor in node.input[:2])
    return len(shape) >= 2 and shape[-1] != 1 and shape[-2] != 1
