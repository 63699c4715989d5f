"""What it does: refuses values whose head dimension is not the keys'.

Why it matters: such models (multi-head latent attention) cache something else than per-head keys and values, and no
layout has been proven on them.

Example: keys of 192 and values of 128 columns.
"""

from __future__ import annotations

from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "VALUE_DIM"


def check(subject: Subject) -> Diagnostic | None:
    site = subject.site
    shape_BKND = subject.shape(site.k)
    key_dim = shape_BKND[-1] if shape_BKND else None
    if site.value_dim == key_dim:
        return None
    message = f"values have {site.value_dim} columns and keys {key_dim}; latent attention is not rewritten"
    return subject.refuse(CODE, message, shapes=dict(subject.listed(site.k, site.v)))
