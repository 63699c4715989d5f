"""What it does: refuses a present that is not Concat(past, new rows) along the key axis, or that attention does not
read.

Why it matters: the KV-cache rewrite writes new rows behind the past in place; it must know that this is what
happens.

Example: new rows put in front of the past; a static cache filled by ScatterND; float32 rows that are attended to, and
rounded to float16 only where they are given out as the present.
"""

from __future__ import annotations

from qbpass.admission.cached_as import gives_out, joins_keys, turned_back
from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject
from qbpass.models.dataflow import attribute

CODE = "CONCAT_FORM"


def check(subject: Subject) -> Diagnostic | None:
    site = subject.site
    for tensor, present, new in (
        (site.k, site.present_key, site.new_key),
        (site.v, site.present_value, site.new_value),
    ):
        reason = _reason(subject, tensor, present, new)
        if reason is not None:
            node = subject.flow.producer(subject.flow.origin(tensor))
            reads = [] if node is None else list(node.input)
            return subject.refuse(CODE, reason, tensor=tensor, operator=node.op_type if node else None, inputs=reads)
    return None


def _reason(subject: Subject, tensor: str, present: str | None, new: str | None) -> str | None:
    node, axes = turned_back(tensor, subject.flow)
    if present is None or not gives_out(present, tensor, subject.flow):
        return f"attention reads {tensor!r} while the graph hands out {present!r} as the present"
    if new is not None:
        return None
    if node is not None and not joins_keys(node, axes):
        return f"the present {tensor!r} is joined along axis {attribute(node, 'axis')}, not along the keys"
    return f"the present {tensor!r} is not Concat(past, new rows)"
