"""What it does: refuses keys, values and mask that do not span the same number of key rows.

Why it matters: a query's key extent decides its bits. If the mask spans another extent than the keys, or the values
than the keys, then rows are read that serial decoding does not read.

Example: a mask of a static capacity added to scores over the true extent; `is_causal=1` of an Attention whose keys
are joined outside, which then counts positions from the first key.
"""

from __future__ import annotations

from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject

CODE = "KEY_EXTENT"


def check(subject: Subject) -> Diagnostic | None:
    site, flow = subject.site, subject.flow
    keys, values = flow.extent(site.k, 2), flow.extent(site.v, 2)
    spans = {site.k: keys, site.v: values}
    mask = None if site.mask is None else flow.extent(site.mask, -1)
    if site.mask is not None and mask is not None and mask.value() != 1:  # one column wide: MASK_FORM's
        spans[site.mask] = mask
    if keys is not None and all(extent == keys for extent in spans.values()):
        return None
    extents = {tensor: str(extent) if extent else None for tensor, extent in spans.items()}
    return subject.refuse(CODE, "keys, values and mask do not span the same key rows", extents=extents)
