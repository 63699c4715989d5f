"""What it does: refuses an attention in which Q, K, V and the mask are not all float32 or float16, and says which
combination of types it has.

Why it matters: other types run through other kernels with other summation orders, and none of them has been measured.
A cache in another type than the products read (float32 products over float16 keys and values) is admitted: what a cast
makes of an element is the same wherever it is cast.

Example: a bfloat16 or a float64 export.
"""

from __future__ import annotations

from qbpass.admission.dataflow import Flow
from qbpass.admission.facts import dtype_name
from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "DTYPE_QUERY_KEY"
MEASURED = frozenset({"float32", "float16"})


def check(subject: Subject) -> Diagnostic | None:
    site, flow = subject.site, subject.flow
    queries = _types(flow, site.q, subject.qk.input[0], *filter(None, [site.mask]))
    cached = _types(flow, site.k, site.v, *subject.qk.input[1:2], *subject.av.input[1:2])
    if {*queries.values(), *cached.values()} <= MEASURED:
        return None
    message = f"{_combination(queries, cached)}, where only float32 and float16 have been measured; export in float32"
    return subject.refuse(CODE, message, types={**queries, **cached})


def _types(flow: Flow, *tensors: str) -> dict[str, str]:
    return {tensor: dtype_name(flow.elem_type(tensor)) for tensor in tensors}


def _combination(queries: dict[str, str], cached: dict[str, str]) -> str:
    sides = [sorted(set(side.values())) for side in (queries, cached)]
    if sides[0] == sides[1] and len(sides[0]) == 1:
        return f"queries, mask, keys and values are all {sides[0][0]}"
    names = [" and ".join(side) for side in sides]
    return f"queries and mask are {names[0]}, keys and values {names[1]}"
