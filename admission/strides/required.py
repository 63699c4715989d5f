"""Which element of Q, K, V and mask each output element of an attention must read: the definition, and no emitter.

For query row j and head a of a call (q rows behind `past` cached rows, n = past + q):

    output[a, j, c] = sum over t < end(j) of p[a, j, t] * V[t, a // G, c]
    p[a, j, .] = softmax over t < n of (sum over c of Q[a, j, c] * K[t, a // G, c]) * scale + mask[j, t]

with G = heads // KV heads. end(j) is n in the exported graph; a layout that gives every row the values it would read
alone ends earlier, and so does the softmax where the layout clips keys: the scores behind end(j) are hidden by the
mask, which is audited for that. Source: Phase-Scoped Query Layouts, section 3.2; DESIGN obligations: every (query,
head) pair reads exactly what it read before, rows return in query order and heads in head order.

Elements are numbered row-major: Q as (H, q, d), K and V as (n, Hkv, d), the mask as its own tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from qbpass.admission.calls.call import Call
from qbpass.admission.site import AttentionSite
from qbpass.admission.strides.elements import Ids, UntracedError

#: The operands of a site, as roots of a trace. Scratch: rows of the cache that are not written yet.
QUERY, KEY, VALUE, MASK, SCRATCH = "query", "key", "value", "mask", "scratch"

NOTHING = -1


@dataclass(frozen=True, eq=False)
class Reads:
    """What each (head, row) of a call reads; NOTHING where it reads nothing.

    query[a, j, t, c], key[a, j, t, c]: the products that make score t. mask[a, j, t]: what is added to it. value[a, j,
    p, c]: the p-th value of output channel c; column[a, j, p]: the score whose weight it gets. steps: for each place
    (query, key, score, weight, value, output) every chain of operations on single elements that occurs there.
    """

    query_HqnD: Ids
    key_HqnD: Ids
    mask_Hqn: Ids
    column_Hqn: Ids
    value_HqnV: Ids
    steps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def required_reads(
    site: AttentionSite,
    call: Call,
    mask_shape: Sequence[int] | None,
    ends: Sequence[int],
    score_ends: Sequence[int] | None = None,
) -> Reads:
    """mask_shape: the mask's own shape, None without one; ends[j]: the first key row whose value row j does not read;
    score_ends[j]: the first one that it makes no score of, where a layout clips keys.

    Raises UntracedError where the mask can't be broadcast to (1, heads, queries, keys).
    """
    q, n = call.queries, call.extent
    a, t = np.arange(site.heads, dtype=np.int64), np.arange(n, dtype=np.int64)
    group = site.heads // site.kv_heads
    pairs = (site.heads, q, n)
    query = np.arange(site.heads * q * site.head_dim, dtype=np.int64).reshape(site.heads, q, 1, site.head_dim)
    kv_row = t[None, None, :, None] * site.kv_heads + a[:, None, None, None] // group
    key = kv_row * site.head_dim + np.arange(site.head_dim)
    value = kv_row * site.value_dim + np.arange(site.value_dim)
    read = t[None, :] < np.asarray(ends, np.int64)[:, None]  # (q, n)
    value = np.where(read[None, :, :, None], np.broadcast_to(value, (*pairs, site.value_dim)), NOTHING)
    scored = t[None, :] < np.asarray([n] * q if score_ends is None else score_ends, np.int64)[:, None]
    return Reads(
        query_HqnD=np.where(scored[None, :, :, None], np.broadcast_to(query, (*pairs, site.head_dim)), NOTHING),
        key_HqnD=np.where(scored[None, :, :, None], np.broadcast_to(key, (*pairs, site.head_dim)), NOTHING),
        mask_Hqn=np.where(scored[None], _mask(mask_shape, pairs), NOTHING),
        column_Hqn=np.broadcast_to(np.where(read, t, NOTHING), pairs),
        value_HqnV=value,
    )


def _mask(shape: Sequence[int] | None, pairs: tuple[int, int, int]) -> Ids:
    if shape is None:
        return np.full(pairs, NOTHING, np.int64)
    numbers = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)
    try:
        found: Ids = np.broadcast_to(numbers, (1, *pairs))[0]
    except ValueError:
        raise UntracedError(f"has a mask of shape {list(shape)}, not one for (1, heads, queries, keys)") from None
    return found


def value_ends(call: Call, exact: Sequence[bool]) -> list[int]:
    """Where each row's values end under a rule that some key extents must be the last column their row reads.

    exact[n]: whether extent n is such a one. Row j reads up to the next exact extent from its own, past + j + 1, on, or
    to the end of the block.
    """
    return [
        next((end for end in range(call.past + row + 1, call.extent) if exact[end]), call.extent)
        for row in range(call.queries)
    ]
