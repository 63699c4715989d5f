"""What it does: refuses an attention over another stream's keys and values.

Why it matters: every query of a call reads the same foreign rows, whatever its position; there is no key extent that
grows with the queries, and nothing that serial decoding would see differently. A rewrite that took these rows for
cached ones would read wrong keys.

Example: the attention over `past_key_values.0.encoder.key` in Whisper's decoder.
"""

from __future__ import annotations

from qbpass.admission.found import Found
from qbpass.admission.report import Diagnostic

CODE = "CROSS_ATTENTION"


def check(found: Found) -> Diagnostic | None:
    if found.other is None:
        return None
    message = f"keys come from another stream ({found.other.tensor!r}): cross-attention is left as it is exported"
    return found.refuse(CODE, message, stream=found.other.tensor)
