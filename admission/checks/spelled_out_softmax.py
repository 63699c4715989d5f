"""What it does: refuses an attention whose softmax is no Softmax node: written as Exp, ReduceSum and Div, or fused with
the mask.

Why it matters: the sum may run in another order than in a Softmax kernel, so nothing measured about Softmax holds for
it; a fused one reads the mask by axes of its own.

Example: `Div(Exp(scores), ReduceSum(Exp(scores)))`; `BiasSoftmax(scores, mask)` in a graph optimized for CUDA.
"""

from __future__ import annotations

from qbpass.admission.found import Found
from qbpass.admission.report import Diagnostic

CODE = "SPELLED_OUT_SOFTMAX"


def check(found: Found) -> Diagnostic | None:
    if found.softmax.op_type == "Softmax":
        return None
    form = "spelled out as Exp, ReduceSum and Div" if found.softmax.op_type == "Div" else found.softmax.op_type
    return found.refuse(CODE, f"the softmax is {form}; only one Softmax node is read")
