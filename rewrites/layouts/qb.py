"""QB: queries as batch entries over shared K and V, only where a probe found that a product's rows must be separated.

Source: Phase-Scoped Query Layouts, sections 3.1 and 3.2. Query j of head a still reads its own Q row, its own mask row
and KV head a // G; K and V are shared by broadcasting over queries and over the group.
"""

from __future__ import annotations

from typing import Any

from qbpass.rewrites.builder import NodeBuilder
from qbpass.rewrites.layouts.context import SiteContext
from qbpass.rewrites.layouts.products import emit_av, emit_qk


def emit_qb(builder: NodeBuilder, context: SiteContext) -> Any:
    """Returns (1, H, q, dv): heads in head order, rows in query order."""
    site, dims, parts = context.site, context.dims, context.site.nodes
    shape = dims.shape(site.kv_heads, site.group, dims.q, 1, dims.n)
    scores = emit_qk(builder, context.qk, context.q_1HqD, context.key_nHD, context.form.qk, shape)
    tensors = {parts.qk: scores}
    if site.mask is not None:
        tensors[site.mask] = context.row_mask
    builder.replay(context.nodes((*parts.score_path, parts.softmax, *parts.prob_path)), tensors)
    mixed = _emit_segments(builder, context, tensors[context.av.inputs[0].name])
    return builder.reshape(mixed, builder.ints(1, site.heads, -1, site.value_dim), "output")


def _emit_segments(builder: NodeBuilder, context: SiteContext, probs: Any) -> Any:
    """(Hkv, G, q, 1, dv) of (Hkv, G, q, 1, n): each segment's rows over its own prefix of values, in query order."""
    dims = context.dims
    values = [*context.value_prefixes, context.value_nHD]
    if len(values) == 1:
        return emit_av(builder, probs, values[0], context.form.av)
    outputs = []
    start: Any = builder.ints(0)
    for index, value in enumerate(values):
        extent, end = dims.segment_extents[index], dims.row_ends[index]
        part = NodeBuilder(f"{builder.scope}/segment{index}", builder.constants)
        bounds = (dims.shape(start, 0), dims.shape(end, extent), builder.ints(2, 4))
        rows = part.node("Slice", [probs, *bounds], "probs", dtype=probs.dtype)
        outputs.append(emit_av(part, rows, value, context.form.av))
        builder.nodes.extend(part.nodes)
        start = end
    return builder.node("Concat", outputs, "av/all_rows", axis=2, dtype=probs.dtype)
