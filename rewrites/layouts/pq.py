"""PQ: one attention subgraph a query over the same K and V, then concatenation. Specialised to a width.

Query j reads its Q row, its mask row, and the values up to its own key extent past + j + 1, as it would alone; where
the form clips keys, keys and mask columns up to there, too: a kernel may compute a column otherwise when others follow.
Slots beyond the call's rows are empty tensors and cost next to nothing.
"""

from __future__ import annotations

from typing import Any

from qbpass.rewrites.builder import NodeBuilder
from qbpass.rewrites.layouts.context import SiteContext
from qbpass.rewrites.layouts.native import emit_exported_kv


def emit_pq(builder: NodeBuilder, context: SiteContext) -> Any:
    """Returns (1, H, q, dv) for q up to the plan's max_queries."""
    site = context.site
    parts = site.nodes
    shared = emit_exported_kv(builder, context)
    builder.replay(context.nodes((*parts.key_path, *parts.value_path)), shared)
    outputs = [_emit_query(builder, context, shared, j) for j in range(context.max_queries)]
    return builder.node("Concat", outputs, "all_queries", axis=2, dtype=outputs[0].dtype)


def _emit_query(builder: NodeBuilder, context: SiteContext, shared: dict[str, Any], j: int) -> Any:
    """(1, H, 1, dv), or (1, H, 0, dv) where the call has no row j."""
    site, parts = context.site, context.site.nodes
    one = NodeBuilder(f"{builder.scope}/query{j}", builder.constants)
    tensors = dict(shared)
    clipped = context.form.clip == "keys"
    extent = query_extent(context, j)
    tensors[site.q] = _row(one, context.q_1HqD, j, "q")
    if site.mask is not None:
        mask = _row(one, context.mask, j, "mask")
        tensors[site.mask] = _until(one, mask, extent, -1, "mask/columns") if clipped else mask
    key, value = context.qk.inputs[1].name, context.av.inputs[1].name
    if clipped:
        axis = 2 if context.qk.attrs.get("transB", 0) else 3
        tensors[key] = _until(one, tensors.get(key, context.qk.inputs[1]), extent, axis, "keys")
    one.replay(context.nodes((parts.qk, *parts.scores_to_weights)), tensors)
    weights = context.av.inputs[0].name
    if not clipped:
        tensors[weights] = _until(one, tensors[weights], extent, 3, "probs")
    tensors[value] = _until(one, tensors.get(value, context.av.inputs[1]), extent, 2, "values")
    one.replay([context.av], tensors)
    builder.nodes.extend(one.nodes)
    return tensors[site.output]


def _until(builder: NodeBuilder, tensor: Any, end: Any, axis: int, name: str) -> Any:
    """The tensor up to `end` along an axis."""
    return builder.node("Slice", [tensor, builder.ints(0), end, builder.ints(axis)], name, dtype=tensor.dtype)


def query_extent(context: SiteContext, j: int) -> Any:
    """past + j + 1 where the call has row j, else 0: an empty slot must not copy the values. Shared by all sites."""
    dims = context.dims
    shared = dims.builder
    cached: dict[str, Any] = dims.query_extents
    key = f"query{j}/extent"
    if key not in cached:
        reach = shared.node("Add", [dims.past, shared.ints(j + 1)], f"query{j}/reach", dtype="int64")
        there = shared.node("Less", [shared.ints(j), dims.q], f"query{j}/there", dtype="bool")
        cached[key] = shared.node("Where", [there, reach, shared.ints(0)], key, dtype="int64")
    return cached[key]


def _row(builder: NodeBuilder, tensor: Any, j: int, name: str) -> Any:
    """Row j of a tensor whose last axes are (q, width); masks may have fewer axes before them than queries."""
    bounds = [builder.ints(value) for value in (j, j + 1, -2)]
    return builder.node("Slice", [tensor, *bounds], name, dtype=tensor.dtype)
