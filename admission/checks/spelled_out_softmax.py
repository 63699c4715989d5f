"""What it does: refuses an attention whose softmax is neither a Softmax node nor that operator's own definition, the
five nodes that ONNX Runtime writes in its place where a provider has no kernel: one written in another way, or fused
with the mask.

Why it matters: what such nodes read of a row, and along which axis, is not known; a fused one reads the mask by axes of
its own.

Example: `Div(Exp(scores), ReduceSum(Exp(scores)))`, which takes no maximum off; `BiasSoftmax(scores, mask)` in a graph
optimized for CUDA.
"""

from __future__ import annotations

from qbpass.admission.found import Found
from qbpass.admission.report import Diagnostic

CODE = "SPELLED_OUT_SOFTMAX"


def check(found: Found) -> Diagnostic | None:
    if found.softmax.op_type == "Softmax" or found.flow.spelled_out_softmax(found.softmax) is not None:
        return None
    form = "spelled out as Exp, ReduceSum and Div" if found.softmax.op_type == "Div" else found.softmax.op_type
    return found.refuse(CODE, f"the softmax is {form}; only Softmax and its definition in ONNX are read")
