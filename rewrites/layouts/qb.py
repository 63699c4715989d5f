"""QB: queries as batch entries over shared K and V, only where a probe found that a product's rows must be separated.

Source: Phase-Scoped Query Layouts, sections 3.1 and 3.2. Query j of head a still reads its own Q row, its own mask row
and KV head a // G; K and V are shared by broadcasting over queries and over the group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qbpass.rewrites.builder import NodeBuilder
from qbpass.rewrites.layouts.context import SiteContext
from qbpass.rewrites.layouts.products import emit_av, emit_qk


def emit_qb(builder: NodeBuilder, context: SiteContext) -> Any:
    """Returns (1, H, q, dv): heads in head order, rows in query order."""
    site = context.site
    mixed = _clipped_segments(builder, context) if context.form.clip == "keys" else _whole_scores(builder, context)
    return builder.reshape(mixed, builder.ints(1, site.heads, -1, site.value_dim), "output")


def _whole_scores(builder: NodeBuilder, context: SiteContext) -> Any:
    """(Hkv, G, q, 1, dv): scores of every row over all keys, then each segment's rows over its own prefix of values."""
    site, dims = context.site, context.dims
    shape = dims.shape(site.kv_heads, site.group, dims.q, 1, dims.n)
    scores = emit_qk(builder, context.qk, context.q_1HqD, context.key_nHD, context.form.qk, shape)
    return _emit_segments(builder, context, _weights(builder, context, scores, context.row_mask))


def _weights(builder: NodeBuilder, context: SiteContext, scores: Any, row_mask: Any) -> Any:
    """(Hkv, G, r, 1, n) of scores of that shape, by the exported nodes between the products."""
    tensors = {context.site.nodes.qk: scores}
    if context.site.mask is not None:
        tensors[context.site.mask] = row_mask
    builder.replay(context.nodes(context.site.nodes.scores_to_weights), tensors)
    return tensors[context.av.inputs[0].name]


def _emit_segments(builder: NodeBuilder, context: SiteContext, probs: Any) -> Any:
    """(Hkv, G, q, 1, dv) of (Hkv, G, q, 1, n): each segment's rows over its own prefix of values, in query order."""
    dims = context.dims
    values = [*context.value_prefixes, context.value_nHD]
    if len(values) == 1:
        return emit_av(builder, probs, values[0], context.form.av)
    outputs = []
    for index, (part, start, end) in enumerate(_segments(builder, context)):
        bounds = (dims.shape(start, 0), dims.shape(end, dims.segment_extents[index]), builder.ints(2, 4))
        rows = part.node("Slice", [probs, *bounds], "probs", dtype=probs.dtype)
        outputs.append(emit_av(part, rows, values[index], context.form.av))
        builder.nodes.extend(part.nodes)
    return _all_rows(builder, context, outputs)


def _clipped_segments(builder: NodeBuilder, context: SiteContext) -> Any:
    """(Hkv, G, q, 1, dv): each segment's rows over its own prefix of keys, mask and values, in query order."""
    site, dims = context.site, context.dims
    keys, values = [*context.key_prefixes, context.key_nHD], [*context.value_prefixes, context.value_nHD]
    outputs = []
    for index, (part, start, end) in enumerate(_segments(builder, context)):
        extent = dims.segment_extents[index]
        rows = part.node("Slice", [context.q_1HqD, start, end, part.ints(2)], "q", dtype=context.q_1HqD.dtype)
        shape = dims.shape(site.kv_heads, site.group, -1, 1, extent)
        scores = emit_qk(part, context.qk, rows, keys[index], context.form.qk, shape)
        mask = context.row_mask
        if mask is not None:
            bounds = (dims.shape(start, 0), dims.shape(end, extent), part.ints(-3, -1))
            mask = part.node("Slice", [mask, *bounds], "mask", dtype=mask.dtype)
        outputs.append(emit_av(part, _weights(part, context, scores, mask), values[index], context.form.av))
        builder.nodes.extend(part.nodes)
    return _all_rows(builder, context, outputs)


def _all_rows(builder: NodeBuilder, context: SiteContext, outputs: list[Any]) -> Any:
    """(Hkv, G, q, 1, dv) of the segments' rows; spare ones stand behind the call's own, and are cut off."""
    rows = builder.node("Concat", outputs, "av/all_rows", axis=2, dtype=outputs[0].dtype)
    if not context.form.spare:
        return rows
    bounds = (builder.ints(0), context.dims.q, builder.ints(2))
    return builder.node("Slice", [rows, *bounds], "av/own_rows", dtype=rows.dtype)


def _segments(builder: NodeBuilder, context: SiteContext) -> Iterator[tuple[NodeBuilder, Any, Any]]:
    """(a builder of its own, first row, row behind the last) of each segment.

    Segments that a call has no rows for come last (extents.py). With spare rows they get the call's last row.
    """
    start: Any = builder.ints(0)
    for index, end in enumerate(context.dims.row_ends):
        first = context.dims.spare_start(index) if context.form.spare and index else start
        yield NodeBuilder(f"{builder.scope}/segment{index}", builder.constants), first, end
        start = end
