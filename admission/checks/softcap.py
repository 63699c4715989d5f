"""What it does: refuses scores that are capped by a Tanh before the softmax.

Why it matters: vector kernels compute Tanh in lanes and in a scalar tail that may round differently, so a row's
bits may depend on where it lies in the tensor. No layout has been measured with it.

Example: `50 * Tanh(scores / 50)`; `softcap=50` of a fused operator.
"""

from __future__ import annotations

from qbpass.admission.dataflow import node_name
from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "SOFTCAP"


def check(subject: Subject) -> Diagnostic | None:
    tanh = next((node for node in subject.score_path if node.op_type == "Tanh"), None)
    if tanh is None:
        return None
    return subject.refuse(CODE, "the scores are capped by a Tanh before the softmax", node=node_name(tanh))
