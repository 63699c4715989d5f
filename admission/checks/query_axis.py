"""What it does: refuses an attention whose Q does not have one row for each token of the call, in a call of any
length.

Why it matters: a verification call evaluates several tokens. A fixed number of rows can't be one call's, and rows
that are not the call's tokens (chunks, packed sequences) must not be split as such.

Example: Q of shape `(1, 9, 1, 64)` in a graph exported for one token a call; PagedAttention, which packs the tokens of
several streams.
"""

from __future__ import annotations

from qbpass.admission.extents import QUERY_ROWS
from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "QUERY_AXIS"


def check(subject: Subject) -> Diagnostic | None:
    site, flow = subject.site, subject.flow
    extent = flow.extent(site.q, -2)
    if extent == QUERY_ROWS:
        return None
    input_ids = flow.interface.input_ids
    message = f"Q has {extent or 'an unknown number of'} rows, not one for each token of {input_ids!r};"
    return subject.refuse(
        CODE, f"{message} export with a dynamic sequence axis", shapes=dict(subject.listed(site.q, input_ids))
    )
