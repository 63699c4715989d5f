"""What it does: refuses an attention whose softmax is written as Exp, ReduceSum and Div.

Why it matters: the sum runs in another order than in a Softmax kernel, so nothing measured about Softmax holds for
it.

Example: `Div(Exp(scores), ReduceSum(Exp(scores)))`.
"""

from __future__ import annotations

from qbpass.admission.found import Found
from qbpass.admission.report import Diagnostic

CODE = "SPELLED_OUT_SOFTMAX"


def check(found: Found) -> Diagnostic | None:
    if found.softmax.op_type == "Softmax":
        return None
    return found.refuse(CODE, "the softmax is spelled out as Exp, ReduceSum and Div; export it as one Softmax node")
