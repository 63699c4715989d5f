"""What it does: refuses an attention in which a query may read keys behind its own position, or can't be shown not to.

Why it matters: in serial decoding no later key exists. Evaluated in one call, a query that is not masked off the
later queries' keys reads them, and its row is another one. The mask is worked out for several calls, from sizes,
positions and an attention mask of ones.

Example: a padding mask alone; no mask at all; a mask that is handed in ready-made; MultiHeadAttention with
`unidirectional=0` and no mask.
"""

from __future__ import annotations

from qbpass.admission.calls.call import CALLS
from qbpass.admission.checks import bias_not_mask, key_extent, mask_form, query_axis, score_op, streams
from qbpass.admission.mask_values import allowed_keys
from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "NOT_CAUSAL"
#: What is no mask of this call's queries and keys is refused for that.
_SPEAK_FIRST = (bias_not_mask, mask_form, key_extent, query_axis, score_op, streams)


def check(subject: Subject) -> Diagnostic | None:
    if any(module.check(subject) is not None for module in _SPEAK_FIRST):
        return None
    masks = subject.added_terms
    if not masks:
        return subject.refuse(CODE, "no mask keeps a query off the later queries' keys")
    for call in CALLS:
        allowed = allowed_keys(masks, subject.flow, call)
        if allowed is None:
            message = f"mask {masks[-1]!r} can't be worked out from sizes and positions, so it can't be shown causal"
            return subject.refuse(CODE, message, masks=masks)
        for row in range(call.queries):
            later = [int(key) for key in allowed[row].nonzero()[0] if key > call.past + row]
            if later:
                message = f"query {row} of {call.queries} behind {call.past} rows may read key {later[0]}, a later one"
                return subject.refuse(CODE, message, masks=masks, query=row, past=call.past, keys=later)
    return None
