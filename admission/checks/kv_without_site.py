"""What it does: reports a KV pair of the decoder that no attention was found for.

Why it matters: a layer that is overlooked would run unrewritten, and its rows would differ without anyone being
told.

Example: a layer whose attention lies in a control-flow body, or a linear attention without a softmax.
"""

from __future__ import annotations

from qbpass.admission.report import Diagnostic, SiteReport
from qbpass.models.contract import CachePair

CODE = "KV_WITHOUT_SITE"


def report(pair: CachePair) -> SiteReport:
    name = f"attention.{pair.layer}"
    message = f"no attention that reads the KV pair of layer {pair.layer} was found; such a layer can't be rewritten"
    evidence = {"past": [pair.past_key, pair.past_value], "present": [pair.present_key, pair.present_value]}
    return SiteReport(name, "unknown", pair.layer, None, (Diagnostic(CODE, name, message, evidence),))
