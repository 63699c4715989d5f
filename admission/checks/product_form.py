"""What it does: refuses products that are not (1, H, q, d) x (1, H, d, n) for the scores and (1, H, q, n) x (1, H,
n, dv) for the output, the keys possibly transposed by the product itself.

Why it matters: the layouts view these axes anew; an axis in another place would be read as something else.

Example: scores of rank 3 with heads folded into the batch; FusedMatMul with transA, or with alpha on the AV
product.
"""

from __future__ import annotations

from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject
from qbpass.models.dataflow import attribute

CODE = "PRODUCT_FORM"


def check(subject: Subject) -> Diagnostic | None:
    qk, av = subject.qk, subject.av
    odd = {f"qk.{name}": attribute(qk, name, 0) for name in ("transA", "transBatchA", "transBatchB")}
    odd |= {f"av.{name}": attribute(av, name, 0) for name in ("transA", "transB", "transBatchA", "transBatchB")}
    odd["av.alpha"] = attribute(av, "alpha", 1.0) - 1.0
    found = sorted(name for name, value in odd.items() if value)
    tensors = (*qk.input[:2], av.input[1], qk.output[0], av.input[0], av.output[0])
    ranks = [None if (shape := subject.shape(tensor)) is None else len(shape) for tensor in tensors]
    # Scores that a mask of another extent is added to have no shape; then KEY_EXTENT or MASK_FORM speaks.
    if not found and all(rank == 4 for rank in ranks[:3]) and all(rank in (4, None) for rank in ranks[3:]):
        return None
    message = "the products of this attention are not of the form (1, heads, queries, ...); export them with rank 4"
    return subject.refuse(CODE, message, attributes=found, shapes=dict(subject.listed(*tensors)))
