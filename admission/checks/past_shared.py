"""What it does: refuses attentions that share one KV pair.

Why it matters: the KV-cache rewrite moves a pair's join and its reads into one site; with a second reader there is
no one site to move them into.

Example: models in which later layers reuse an earlier layer's keys and values.
"""

from __future__ import annotations

from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "PAST_SHARED"


def check(subject: Subject) -> Diagnostic | None:
    site = subject.site
    pair = {site.past_key, site.past_value}
    others = [o.name for o in subject.sites if o.name != site.name and pair & {o.past_key, o.past_value}]
    if not others:
        return None
    message = f"its KV pair is also read by {', '.join(others)}"
    return subject.refuse(CODE, message, sites=others, past=[site.past_key, site.past_value])
