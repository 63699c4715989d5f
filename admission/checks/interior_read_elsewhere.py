"""What it does: refuses an attention with an inner tensor that something outside it reads, or that is a graph
output.

Why it matters: a rewritten attention has no tensor of the same shape to give to that reader.

Example: an export with `output_attentions=True`, which returns every layer's probabilities.
"""

from __future__ import annotations

from qbpass.admission.dataflow import node_name
from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "INTERIOR_READ_ELSEWHERE"


def check(subject: Subject) -> Diagnostic | None:
    nodes = subject.site.nodes
    own = set(nodes.all())
    inner = [tensor for name in own - {nodes.av} for tensor in subject.flow.node(name).output if tensor]
    for tensor in sorted(inner):
        readers = [node_name(node) for node in subject.flow.consumers(tensor) if node_name(node) not in own]
        readers += ["graph output"] if tensor in subject.flow.outputs else []
        if readers:
            return subject.refuse(CODE, f"the inner tensor {tensor!r} is read outside", tensor=tensor, readers=readers)
    return None
