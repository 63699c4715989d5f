"""What it does: refuses an attention in which Q, K, V and the mask are not all float32, and says which combination of
types it has.

Why it matters: other types run through other kernels with other summation orders; none of them has been measured. All
float16, all bfloat16, and float32 queries over a float16 cache are three different cases.

Example: a float16 export; float32 queries over float16 keys and values.
"""

from __future__ import annotations

from qbpass.admission.dataflow import Flow
from qbpass.admission.facts import dtype_name
from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "DTYPE_QUERY_KEY"


def check(subject: Subject) -> Diagnostic | None:
    site, flow = subject.site, subject.flow
    queries = _types(flow, site.q, subject.qk.input[0], *filter(None, [site.mask]))
    cached = _types(flow, site.k, site.v, *subject.qk.input[1:2], *subject.av.input[1:2])
    if set(queries.values()) == set(cached.values()) == {"float32"}:
        return None
    message = f"{_combination(queries, cached)}, where only float32 has been measured; export in float32"
    return subject.refuse(CODE, message, types={**queries, **cached})


def _types(flow: Flow, *tensors: str) -> dict[str, str]:
    return {tensor: dtype_name(flow.elem_type(tensor)) for tensor in tensors}


def _combination(queries: dict[str, str], cached: dict[str, str]) -> str:
    sides = [sorted(set(side.values())) for side in (queries, cached)]
    if sides[0] == sides[1] and len(sides[0]) == 1:
        return f"queries, mask, keys and values are all {sides[0][0]}"
    names = [" and ".join(side) for side in sides]
    return f"queries and mask are {names[0]}, keys and values {names[1]}"
