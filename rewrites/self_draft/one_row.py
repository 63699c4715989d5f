"""Attention of one row over the cache's own layout: the group's heads are the rows of one product a KV head.

A draft promises no bits, so nothing is separated and nothing is clipped: at one row the whole extent is the row's own.
"""

from __future__ import annotations

from typing import Any

from qbpass.rewrites.builder import NodeBuilder
from qbpass.rewrites.layouts.context import SiteContext

MICROSOFT = "com.microsoft"


def emit_one_row(builder: NodeBuilder, context: SiteContext) -> Any:
    """Returns (1, H, 1, dv)."""
    site, key, value = context.site, context.key_nHD, context.value_nHD
    alpha = float(context.qk.attrs.get("alpha", 1.0))
    rows = builder.reshape(context.q_1HqD, builder.ints(site.kv_heads, site.group, site.head_dim), "q")
    scores = _product(builder, rows, key, "qk", alpha=alpha, transB=1, transBatchB=1)
    lead = builder.ints(1, site.kv_heads, site.group, -1)
    tensors = {site.nodes.qk: builder.reshape(scores, lead, "scores")}  # (1, Hkv, G, n): a mask (1, 1, 1, n) fits
    if site.mask is not None:
        tensors[site.mask] = context.mask
    builder.replay(context.nodes(site.nodes.scores_to_weights), tensors)
    weights = builder.reshape(
        tensors[context.av.inputs[0].name], builder.ints(site.kv_heads, site.group, -1), "weights"
    )
    mixed = _product(builder, weights, value, "av", alpha=1.0, transBatchB=1)
    return builder.reshape(mixed, builder.ints(1, site.heads, 1, site.value_dim), "output")


def _product(builder: NodeBuilder, a: Any, b: Any, name: str, **attrs: Any) -> Any:
    return builder.node("FusedMatMul", [a, b], name, domain=MICROSOFT, dtype=a.dtype, **attrs)
