"""What it does: refuses an attention that reads no KV pair of the decoder.

Why it matters: only causal self-attention over a KV cache has the same queries in serial and in multi-query calls.
Cross-attention and encoders attend to other rows, and a rewrite that took them for cached rows would read wrong
keys.

Example: `Softmax(MatMul(q, encoder_keys))` in a text-to-text model's decoder.
"""

from __future__ import annotations

from qbpass.admission.found import Found
from qbpass.admission.report import Diagnostic

CODE = "NO_KV_PAIR"


def check(found: Found) -> Diagnostic | None:
    if found.key is not None or found.value is not None:
        return None
    return found.refuse(
        CODE, "this attention reads no KV pair of the decoder; only self-attention over the KV cache can be rewritten"
    )
