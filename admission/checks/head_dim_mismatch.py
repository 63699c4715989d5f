"""What it does: refuses a Q whose head dimension is not that of the cached keys.

Why it matters: then the keys are changed between the cache and the product (a part of them, or a decompression),
and multiplying Q by the shared cache is not what the original does.

Example: a latent KV cache of width 512 expanded to head dimension 128 on each call.
"""

from __future__ import annotations

from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "HEAD_DIM_MISMATCH"


def check(subject: Subject) -> Diagnostic | None:
    site = subject.site
    shape_BKND = subject.shape(site.k)
    key_dim = shape_BKND[-1] if shape_BKND else None
    if key_dim == site.head_dim:
        return None
    message = f"Q's head dimension is {site.head_dim} and the cached keys' is {key_dim}"
    return subject.refuse(CODE, message, shapes=dict(subject.listed(site.q, site.k)))
