"""What it does: refuses an attention with a product that is neither MatMul nor FusedMatMul.

Why it matters: which operand is read along which axis must be known to keep every address; an Einsum may do
anything.

Example: `Einsum("bhqd,bhkd->bhqk", q, k)`.
"""

from __future__ import annotations

from qbpass.admission.found import Found
from qbpass.admission.report import Diagnostic
from qbpass.admission.walks import PLAIN_PRODUCTS

CODE = "PRODUCT_OPERATOR"


def check(found: Found) -> Diagnostic | None:
    odd = next((node for node in (found.qk, found.av.node) if node.op_type not in PLAIN_PRODUCTS), None)
    if odd is None:
        return None
    return found.refuse(CODE, f"a product of this attention is {odd.op_type}; export it as MatMul")
