"""MQ: the site as exported, every query of the call in one product; its K and V now come from the cache."""

from __future__ import annotations

from typing import Any

from qbpass.rewrites.builder import NodeBuilder
from qbpass.rewrites.layouts.context import SiteContext


def emit_exported_kv(builder: NodeBuilder, context: SiteContext) -> dict[str, Any]:
    """The present keys and values in the export's own order, (1, Hkv, n, d): what its Concat made.

    Keyed by the names of the site's tensors.
    """
    site = context.site
    tensors: dict[str, Any] = {}
    for name, cache in ((site.k, context.key_nHD), (site.v, context.value_nHD)):
        rows = builder.reshape(cache, builder.ints(1, -1, *cache.shape[1:]), f"{name}/rows")
        tensors[name] = builder.node("Transpose", [rows], name, perm=[0, 2, 1, 3], dtype=cache.dtype)
    return tensors


def emit_native(builder: NodeBuilder, context: SiteContext) -> Any:
    """The exported nodes, unchanged. Returns (1, H, q, dv)."""
    tensors = emit_exported_kv(builder, context)
    parts = context.site.nodes
    order = (*parts.key_path, parts.qk, *parts.scores_to_weights, *parts.value_path, parts.av)
    builder.replay(context.nodes(order), tensors)
    return tensors[context.site.output]
