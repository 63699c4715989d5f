"""The layouts in which the fused operator itself runs: as exported, and one call a row (PQ)."""

from __future__ import annotations

from typing import Any

from qbpass.admission.site import AttentionSite
from qbpass.rewrites.builder import NodeBuilder
from qbpass.rewrites.layouts.context import SiteContext
from qbpass.rewrites.layouts.pq import query_extent
from qbpass.rewrites.lowering.fused_call import Row, emit_fused_call, emit_whole_operands
from qbpass.rewrites.plan import SiteForm


def keeps_fused_rows(site: AttentionSite, layout: str) -> bool:
    """Whether the layout runs the fused node itself, row by row. GroupQueryAttention's counts are a chain's matter."""
    return layout == "pq" and site.fused is not None and site.fused.kind != "gqa"


def first_form(site: AttentionSite, layout: str) -> SiteForm:
    """Before anything is tried. A fused node's rows end where they do alone: it can't be given keys and hide them."""
    return SiteForm(clip="keys") if keeps_fused_rows(site, layout) else SiteForm()


def emit_fused_native(builder: NodeBuilder, context: SiteContext) -> Any:
    """The node that the frozen graph has, all rows of the call at once. Returns (1, H, q, dv)."""
    return emit_fused_call(builder, context, emit_whole_operands(builder, context))


def emit_fused_pq(builder: NodeBuilder, context: SiteContext) -> Any:
    """One call of the operator a row, over the keys that the row has in serial decoding. Returns (1, H, q, dv).

    A call with fewer rows than the plan has slots runs the others on its first row and one key, and drops them: not
    every kernel takes empty operands.
    """
    whole = emit_whole_operands(builder, context)
    outputs = []
    for j in range(context.max_queries):
        one = NodeBuilder(f"{builder.scope}/query{j}", builder.constants)
        outputs.append(emit_fused_call(one, context, whole, _row(context, j)))
        builder.nodes.extend(one.nodes)
    if len(outputs) == 1:
        return outputs[0]
    dtype = context.q_1HqD.dtype
    every = builder.node("Concat", outputs, "all_slots", axis=2, dtype=dtype)
    return builder.node("Slice", [every, builder.ints(0), context.dims.q, builder.ints(2)], "all_queries", dtype=dtype)


def _row(context: SiteContext, j: int) -> Row:
    """Row j, or row 0 over one key where the call has no row j. Shared by all sites."""
    dims = context.dims
    shared, cached = dims.builder, dims.query_extents

    def once(key: str, operator: str, inputs: list[Any], dtype: str = "int64") -> Any:
        if key not in cached:
            cached[key] = shared.node(operator, inputs, key, dtype=dtype)
        return cached[key]

    at = f"query{j}/slot"
    extent = once(f"{at}/extent", "Max", [query_extent(context, j), shared.ints(1)])
    start = once(f"{at}/start", "Min", [shared.ints(j), once("last_row", "Sub", [dims.q, shared.ints(1)])])
    end = once(f"{at}/end", "Add", [start, shared.ints(1)])
    past = once(f"{at}/past", "Sub", [extent, shared.ints(1)])
    return Row(start, end, past, extent)
