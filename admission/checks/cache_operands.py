"""What it does: refuses an attention that does not multiply queries by one layer's cached keys, then probabilities
by the same layer's cached values, in that order.

Why it matters: the rewrite keeps K and V as one shared stream per layer. If the operands are swapped, or only one
of them comes from the cache, or they come from two layers, the shared stream is not what the original reads.

Example: `MatMul(k, q)` with transposed scores; keys of layer 3 used with values of layer 2.
"""

from __future__ import annotations

from qbpass.admission.found import Found
from qbpass.admission.report import Diagnostic

CODE = "CACHE_OPERANDS"


def check(found: Found) -> Diagnostic | None:
    reason = _reason(found)
    return None if reason is None else found.refuse(CODE, f"{reason}; only q x cached keys, p x cached values is read")


def _reason(found: Found) -> str | None:
    if found.av.operand != 0:
        return "the probabilities are the second operand of their product"
    if found.key is None:
        return "the second operand of the QK product is no cached key"
    if found.value is None or found.value.role == "key":
        return "the second operand of the AV product is no cached value"
    if found.key.pair != found.value.pair:
        return f"keys are layer {found.key.pair.layer}'s and values layer {found.value.pair.layer}'s"
    return None
