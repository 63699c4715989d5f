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
    site, dims, form = context.site, context.dims, context.form
    shape = dims.shape(site.kv_heads, site.group, dims.q, dims.n)
    scores = emit_qk(builder, context.qk, context.q_1HqD, context.key_nHD, form.qk, shape)
    tensors = {site.nodes.qk: scores}
    parts = site.nodes
    # The scores are (Hkv, G, q, n): a (1, 1, q, n) mask broadcasts over them row by row, as over (1, H, q, n).
    builder.replay(context.nodes((*parts.score_path, parts.softmax, *parts.prob_path)), tensors)
    probs = tensors[context.av.inputs[0].name]
    mixed = _emit_segments(builder, context, probs)
    return builder.reshape(mixed, builder.ints(1, site.heads, -1, site.value_dim), "output")


def _emit_segments(builder: NodeBuilder, context: SiteContext, probs: Any) -> Any:
    """(Hkv, G, q, dv): each segment's rows over its own prefix of the values, rows in query order."""
    site, dims = context.site, context.dims
    out_shape = builder.ints(site.kv_heads, site.group, -1, site.value_dim)
    outputs = []
    start: Any = builder.ints(0)
    last = len(context.value_segments) - 1
    for index, value in enumerate(context.value_segments):
        extent, end = dims.segment_extents[index], dims.row_ends[index]
        part = NodeBuilder(f"{builder.scope}/segment{index}", builder.constants)
        rows = probs
        if last:
            rows = part.node(
                "Slice",
                [probs, dims.shape(start, 0), dims.shape(end, extent), builder.ints(2, 3)],
                "probs",
                dtype=probs.dtype,
            )
        heads = (site.kv_heads, -1, 1) if context.form.av != "rows" else (site.kv_heads, -1)
        outputs.append(emit_av(part, rows, value, context.form.av, dims.shape(*heads, extent), out_shape))
        builder.nodes.extend(part.nodes)
        start = end
    if len(outputs) == 1:
        return outputs[0]
    return builder.node("Concat", outputs, "av/all_rows", axis=2, dtype=probs.dtype)
