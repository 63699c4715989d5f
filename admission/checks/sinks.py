"""What it does: refuses scores that get extra columns before the softmax.

Why it matters: an attention sink takes part in the softmax's sum and is cut off behind it; the extent of the
softmax is then not the key extent.

Example: `Softmax(Concat(scores, sink))` followed by a Slice that drops the last column; `head_sink` or
`smooth_softmax=1` of a fused operator.
"""

from __future__ import annotations

from qbpass.admission.dataflow import node_name
from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "SINKS"


def check(subject: Subject) -> Diagnostic | None:
    concat = next((node for node in subject.score_path if node.op_type == "Concat"), None)
    if concat is None:
        return None
    message = "columns are added to the scores before the softmax (attention sinks)"
    return subject.refuse(CODE, message, node=node_name(concat), inputs=list(concat.input))
