"""What it does: refuses keys or values that do not reach their product as whole cached rows, head h reading KV head
h // group. The path from the cache is run on a tiny call to find which element lands where.

Why it matters: Q is viewed as (KV heads, group x queries, d) over the shared cache. That reads the original's
addresses only if the group map is contiguous, every key row is there, in order, and nothing on the path changes a
value.

Example: keys repeated by Tile, so that head h reads KV head h % kv_heads; keys rotated after the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qbpass.admission.calls.call import CALLS
from qbpass.admission.path_map import PathError, call_shape, index_map
from qbpass.admission.report import Diagnostic
from qbpass.admission.subject import Subject
from qbpass.models.dataflow import attribute

CODE = "STRIDE_LEGALITY"


def check(subject: Subject) -> Diagnostic | None:
    site = subject.site
    shape_BKND = subject.shape(site.k)
    key_dim = shape_BKND[-1] if shape_BKND else None
    if site.heads % site.kv_heads or site.head_dim != key_dim or len(subject.shape(site.q) or ()) != 4:
        return None  # GQA_RATIO, HEAD_DIM_MISMATCH and PRODUCT_FORM speak for these
    if not shape_BKND or shape_BKND[0] != 1:
        return None  # STREAMS speaks for it
    turned = not attribute(subject.qk, "transB", 0)
    for source, sink, swap in ((site.k, subject.qk.input[1], turned), (site.v, subject.av.input[1], False)):
        diagnostic = _check_path(subject, source, sink, swap)
        if diagnostic is not None:
            return diagnostic
    return None


def _check_path(subject: Subject, source: str, sink: str, swap: bool) -> Diagnostic | None:
    group = subject.site.group
    for call in CALLS[:2]:  # one size alone could agree by chance
        try:
            found = index_map(subject.flow, source, sink, call)
            shape = call_shape(subject.flow, source, call)
        except PathError as error:
            return subject.refuse(CODE, f"the path from {source!r} to {sink!r} {error}", source=source, sink=sink)
        wanted = np.arange(np.prod(shape)).reshape(shape)
        if not (shape[1] == 1 and found.ndim == 4 and found.shape[1] == 1):  # one KV head may be left to broadcasting
            wanted = np.repeat(wanted, group, axis=1)
        if swap:
            wanted = wanted.swapaxes(-1, -2)
        if found.shape != wanted.shape or not np.array_equal(found, wanted):
            message = f"{sink!r} is not {source!r} with each KV head repeated {group} times in place"
            evidence = {
                "shape": list(found.shape),
                "expected": list(wanted.shape),
                "kv_heads_read": _head_map(found, shape),
            }
            return subject.refuse(CODE, message, source=source, sink=sink, **evidence)
    return None


def _head_map(found: np.ndarray[Any, Any], shape: list[int]) -> list[int]:
    """The KV head that the first element of each head comes from."""
    first = found.reshape(found.shape[0] * found.shape[1], -1)[:, 0] if found.ndim > 1 and found.size else found[:0]
    return [int(index) // (shape[2] * shape[3]) for index in first]
