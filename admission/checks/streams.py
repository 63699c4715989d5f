"""What it does: refuses a batch axis that is not the constant 1.

Why it matters: queries become batch entries in the rewritten graph. Where the batch may hold several streams, they
would be taken for several queries of one stream.

Example: `input_ids` of shape `(batch, sequence)`, as most exporters write it by default.
"""

from __future__ import annotations

from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "STREAMS"


def check(subject: Subject) -> Diagnostic | None:
    given = (subject.flow.interface.input_ids, subject.site.q, subject.site.k, subject.site.v)
    tensors = [tensor for tensor in given if tensor is not None]
    batches = {tensor: shape[0] if (shape := subject.shape(tensor)) else None for tensor in tensors}
    if subject.shape(subject.site.q) is not None and len(subject.shape(subject.site.q) or ()) != 4:
        del batches[subject.site.q]  # PRODUCT_FORM speaks for it
    if all(batch == 1 for batch in batches.values()):
        return None
    message = "the batch axis is not the constant 1, so several streams could be taken for several queries;"
    return subject.refuse(CODE, f"{message} export with a fixed batch of 1 (qbpass export does)", batch=batches)
