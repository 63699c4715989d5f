"""What it does: refuses a past or present key or value that something outside the attention reads.

Why it matters: the rewrite reads the cache in place. A reader it does not know would see the cache in another
state, or of another extent, than it saw before.

Example: a second product over the present keys that picks which keys to keep.
"""

from __future__ import annotations

from qbpass.admission.dataflow import node_name
from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "PRESENT_READ_ELSEWHERE"


def check(subject: Subject) -> Diagnostic | None:
    site = subject.site
    own = {name for other in subject.sites for name in other.nodes.all()}  # PAST_SHARED speaks for other sites
    own |= {node_name(node) for tensor in (site.k, site.v) if (node := subject.flow.producer(tensor)) is not None}
    for tensor in (site.k, site.v, site.past_key, site.past_value):
        readers = subject.flow.consumers(tensor or "")
        strange = [node for node in readers if node_name(node) not in own and node.op_type != "Shape"]
        if strange:
            names = {node_name(node): node.op_type for node in strange}
            return subject.refuse(CODE, f"{tensor!r} is read outside this attention", tensor=tensor, readers=names)
    return None
