"""What it does: refuses a past or present key or value that something outside the attention reads.

Why it matters: the rewrite reads the cache in place. A reader it does not know would see the cache in another
state, or of another extent, than it saw before.

Example: a second product over the present keys that picks which keys to keep.
"""

from __future__ import annotations

import onnx

from qbpass.admission.cached_as import gives_out_by
from qbpass.admission.dataflow import node_name
from qbpass.admission.report import Diagnostic
from qbpass.admission.site import AttentionSite
from qbpass.admission.site_sizes import cache_tensors
from qbpass.admission.subject import Subject

CODE = "PRESENT_READ_ELSEWHERE"


def check(subject: Subject) -> Diagnostic | None:
    site, flow = subject.site, subject.flow
    caches = cache_tensors(site, flow)
    own = {name for other in subject.sites for name in other.nodes.all()}  # PAST_SHARED speaks for other sites
    own |= {node_name(node) for tensor in caches if (node := flow.producer(tensor)) is not None}
    for tensor in caches:
        readers = [node for node in flow.consumers(tensor) if node_name(node) not in own]
        strange = [node for node in readers if not _asks_a_size(node, tensor, site) and not _gives_out(node, subject)]
        if strange:
            names = {node_name(node): node.op_type for node in strange}
            return subject.refuse(CODE, f"{tensor!r} is read outside this attention", tensor=tensor, readers=names)
    return None


def _gives_out(node: onnx.NodeProto, subject: Subject) -> bool:
    presents = filter(None, (subject.site.present_key, subject.site.present_value))
    return any(gives_out_by(node, present, subject.flow) for present in presents)


def _asks_a_size(node: onnx.NodeProto, tensor: str, site: AttentionSite) -> bool:
    return node.op_type == "Shape" and tensor in site.sizes
