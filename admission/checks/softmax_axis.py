"""What it does: refuses a softmax that does not run over the keys.

Why it matters: a softmax over queries or heads mixes rows, and then no row can be evaluated by itself.

Example: `Softmax(scores, axis=1)`.
"""

from __future__ import annotations

from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject
from qbpass.models.dataflow import attribute

CODE = "SOFTMAX_AXIS"


def check(subject: Subject) -> Diagnostic | None:
    softmax = subject.flow.node(subject.site.nodes.softmax)
    opset = next((entry.version for entry in subject.flow.model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    # Before opset 13 the default was 1 and everything behind the axis was one row.
    axis = attribute(softmax, "axis", -1 if opset >= 13 else 1)
    rank = len(subject.shape(softmax.input[0]) or ())
    if axis == -1 or (rank and axis == rank - 1):
        return None
    return subject.refuse(CODE, f"the softmax runs over axis {axis}, not over the keys", axis=axis, rank=rank)
