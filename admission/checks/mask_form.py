"""What it does: refuses a mask that can't be broadcast from (1, 1, queries, keys), and more than one mask.

Why it matters: the mask's query axis moves with the queries, and the same mask must hold for every head. A mask
with one shared key column, or one for each head, has no such view.

Example: a mask of shape `(1, heads, queries, keys)`; padding and causal masks added one after the other.
"""

from __future__ import annotations

from qbpass.admission.extents import QUERY_ROWS
from qbpass.admission.mask_flow import bias_source
from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "MASK_FORM"


def check(subject: Subject) -> Diagnostic | None:
    masks = [tensor for tensor in subject.added_terms if bias_source(tensor, subject.flow) is None]
    if len(masks) > 1:
        return subject.refuse(CODE, f"{len(masks)} masks are added one after the other; export one mask", masks=masks)
    for mask in masks:
        reason = _reason(subject, mask)
        if reason is not None:
            message = f"the mask {reason}, so it is not one mask of (1, 1, queries, keys) for every head"
            return subject.refuse(CODE, message, shapes=dict(subject.listed(mask)))
    return None


def _reason(subject: Subject, mask: str) -> str | None:
    shape, flow = subject.shape(mask), subject.flow
    if shape is None or None in shape:
        return "has an unknown shape"
    if not 1 <= len(shape) <= 4:
        return f"has rank {len(shape)}"
    batch_of_keys = (subject.shape(subject.site.k) or (1,))[0]  # STREAMS speaks for it
    if any(dim != 1 for dim in shape[-3:-2]) or any(dim not in (1, batch_of_keys) for dim in shape[:-3]):
        return "differs between heads or streams"
    if shape[-1] == 1:
        return "has one column for all keys"
    if len(shape) > 1 and shape[-2] != 1 and flow.extent(mask, -2) != QUERY_ROWS:
        return f"has {flow.extent(mask, -2)} rows, not one for each query"
    return None
