"""What it does: refuses an attention with an inner tensor that something outside it reads, or that is a graph
output.

Why it matters: a rewritten attention has no tensor of the same shape to give to that reader.

Example: an export with `output_attentions=True`, which returns every layer's probabilities.
"""

from __future__ import annotations

from qbpass.admission.dataflow import node_name
from qbpass.admission.report import Diagnostic
from qbpass.admission.site_sizes import inner_tensors, outside_readers
from qbpass.admission.subject import Subject

CODE = "INTERIOR_READ_ELSEWHERE"


def check(subject: Subject) -> Diagnostic | None:
    site, flow = subject.site, subject.flow
    for tensor in sorted(inner_tensors(site, flow)):
        strange = [n for n in outside_readers(site, tensor, flow) if n.op_type != "Shape" or tensor not in site.sizes]
        readers = [node_name(node) for node in strange] + (["graph output"] if tensor in flow.outputs else [])
        if readers:
            return subject.refuse(CODE, f"the inner tensor {tensor!r} is read outside", tensor=tensor, readers=readers)
    return None
