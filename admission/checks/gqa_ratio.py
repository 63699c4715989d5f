"""What it does: refuses a number of query heads that is no multiple of the number of KV heads.

Why it matters: the heads are viewed as (KV heads, group); without a whole group there is no such view.

Example: 9 query heads over 4 KV heads.
"""

from __future__ import annotations

from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "GQA_RATIO"


def check(subject: Subject) -> Diagnostic | None:
    site = subject.site
    if site.kv_heads > 0 and site.heads % site.kv_heads == 0:
        return None
    message = f"{site.heads} query heads can't share {site.kv_heads} KV heads evenly"
    return subject.refuse(CODE, message, shapes=dict(subject.listed(site.q, site.k)))
