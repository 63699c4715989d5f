"""What it does: refuses an attention over a KV cache whose elements are quantized.

Why it matters: keys and values are rounded when they are cached and scaled back when they are read, so what a query
reads of its own call's rows may not be what it reads of the same rows when they are past. No layout has been measured
with that.

Example: `k_quant_type="PER_CHANNEL"` of GroupQueryAttention; an int8 past behind DequantizeLinear.
"""

from __future__ import annotations

from onnx import TensorProto

from qbpass.admission.facts import dtype_name
from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "QUANTIZED_KV"

TYPES = frozenset(
    kind
    for name, kind in TensorProto.DataType.items()
    if name.startswith(("FLOAT8", "FLOAT4")) or name in ("INT8", "UINT8", "INT4", "UINT4", "INT2", "UINT2")
)


def check(subject: Subject) -> Diagnostic | None:
    site, flow = subject.site, subject.flow
    caches = filter(None, (site.past_key, site.past_value, site.k, site.v, site.present_key, site.present_value))
    types = {cache: kind for cache in dict.fromkeys(caches) if (kind := flow.elem_type(cache)) in TYPES}
    if not types:
        return None
    names = {cache: dtype_name(kind) for cache, kind in types.items()}
    return subject.refuse(CODE, f"the KV cache is quantized ({', '.join(sorted(set(names.values())))})", types=names)
