"""What it does: refuses an attention in which Q, K, V and the mask are not all float32.

Why it matters: other types run through other kernels with other summation orders; none of them has been measured.

Example: a float16 export; float32 queries over an int8 KV cache.
"""

from __future__ import annotations

from onnx import TensorProto

from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "DTYPE_QUERY_KEY"


def check(subject: Subject) -> Diagnostic | None:
    site, flow = subject.site, subject.flow
    operands = (site.q, site.k, site.v, *subject.qk.input[:2], *subject.av.input[:2], *filter(None, [site.mask]))
    types = {tensor: TensorProto.DataType.Name(flow.elem_type(tensor)) for tensor in operands}
    if set(types.values()) == {"FLOAT"}:
        return None
    found = ", ".join(sorted(set(types.values())))
    return subject.refuse(CODE, f"Q, K, V and mask are not all float32 ({found}); export in float32", types=types)
