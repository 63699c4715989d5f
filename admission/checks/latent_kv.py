"""What it does: refuses an attention whose keys or values are computed from the cache by a projection.

Why it matters: such a cache holds latents (multi-head latent attention), not the keys and values that the products
read. The shared cache of the rewrite would be multiplied in place of what the original multiplies.

Example: DeepSeek-V3, which caches 16 latents a row and projects keys and values from them in every call.
"""

from __future__ import annotations

from qbpass.admission.found import Found
from qbpass.admission.report import Diagnostic

CODE = "LATENT_KV"


def check(found: Found) -> Diagnostic | None:
    tie = next((tie for tie in (found.key, found.value) if tie is not None and tie.projected), None)
    if tie is None:
        return None
    message = f"keys or values are projected from {tie.tensor!r} in every call: the cache holds latents"
    return found.refuse(CODE, message, cached=tie.tensor)
