"""What it does: refuses an attention whose keys and values are made in this call alone.

Why it matters: without a past there is no cache that a later call could go on from; such a graph serves the first call
only, and the graph that decodes is another one.

Example: `decoder_model.onnx` beside `decoder_with_past_model.onnx`.
"""

from __future__ import annotations

from qbpass.admission.found import Found
from qbpass.admission.report import Diagnostic

CODE = "NO_PAST"


def check(found: Found) -> Diagnostic | None:
    tie = found.key or found.value
    if tie is None or tie.pair.past_key is not None or tie.pair.past_value is not None:
        return None
    return found.refuse(CODE, "this attention takes no past; use the graph with past_key_values inputs")
