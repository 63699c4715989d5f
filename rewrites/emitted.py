"""The emitted graph of a site, cut out for one call in one phase with Q, mask, cache and new rows as its inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qbpass.admission.calls.call import Call
from qbpass.admission.site import AttentionSite
from qbpass.admission.strides.call_audit import Subject
from qbpass.admission.strides.cut_graph import GraphCutter
from qbpass.admission.strides.elements import Ids
from qbpass.admission.strides.exported import query_numbers, row_numbers
from qbpass.admission.strides.exported_audit import ExportedGraph
from qbpass.admission.strides.operands import Memory
from qbpass.admission.strides.required import KEY, MASK, NOTHING, QUERY, VALUE, required_reads, value_ends
from qbpass.models.dataflow import attribute
from qbpass.rewrites.extents import segment_extents
from qbpass.rewrites.kv_cache import cache_name, segment_name, updated_name
from qbpass.rewrites.lowering.audit_fused import raw_leaves
from qbpass.rewrites.plan import RewritePlan


def emitted_subject(
    cutter: GraphCutter,
    plan: RewritePlan,
    site: AttentionSite,
    call: Call,
    *,
    active: bool,
    exported: ExportedGraph,
) -> Subject:
    """`active`: whether the cut graph is the plan's layout. Raises UntracedError as GraphCutter.cut does."""
    ends = segment_extents(call.past, call.queries, plan.extents, plan.segments)
    mask_shape = exported.mask_shape(site, call)
    leaves = _leaves(site, call, ends[:-1], mask_shape, exported)
    leaves |= raw_leaves(site, leaves)
    sizes, size_of = _cache_sizes(plan, site, call, ends[:-1]), exported.size_of(site, call)

    def size(tensor: str) -> Sequence[int]:
        return sizes[tensor] if tensor in sizes else size_of(tensor)

    caches = {updated_name(site.layer, "key"): KEY, updated_name(site.layer, "value"): VALUE}
    model = cutter.cut([site.output, *caches], leaves, size)
    row_ends = required_ends(plan, call, active=active)
    clipped = active and any(entry.site.name == site.name and entry.form.clip == "keys" for entry in plan.sites)
    required = required_reads(site, call, mask_shape, row_ends, row_ends if clipped else None)
    return Subject(model, leaves, site.output, required, caches)


def required_ends(plan: RewritePlan, call: Call, *, active: bool) -> list[int]:
    """Where each row's values end: at the row's own key under PQ, by the plan's rule under QB, else at the last key."""
    if not active:
        return [call.extent] * call.queries
    if plan.layout == "pq":
        return [call.past + row + 1 for row in range(call.queries)]
    return value_ends(call, [plan.extents.exact(extent) for extent in range(call.extent + 1)])


def _leaves(
    site: AttentionSite,
    call: Call,
    segments: Sequence[int],
    mask_shape: Sequence[int] | None,
    exported: ExportedGraph,
) -> dict[str, Memory]:
    leaves = {site.q: Memory.own(site.q, QUERY, query_numbers(site, call))}
    if site.mask is not None and mask_shape is not None:
        numbers = np.arange(np.prod(mask_shape, dtype=np.int64)).reshape(mask_shape)
        leaves[site.mask] = Memory.own(site.mask, MASK, numbers)
    for root, part, new, width, steps in (
        (KEY, "key", site.new_key, site.head_dim, site.key_steps),
        (VALUE, "value", site.new_value, site.value_dim, site.value_steps),
    ):
        rows_nHD = row_numbers(site, call.extent, width)
        before = np.where(np.arange(call.extent)[:, None, None] < call.past, rows_nHD, NOTHING)
        name = cache_name(site.layer, part)
        through = exported.through(steps)  # what comes behind the cache in the export was done before it was written
        leaves[name] = Memory(root, before, name, before.size, through)
        if new is not None:
            axes = site.key_axes if root == KEY else site.value_axes
            leaves |= _new_rows(new, root, rows_nHD[call.past :].transpose(1, 0, 2)[None].transpose(axes), exported)
        for index, end in enumerate(segments):
            # The memory of the written cache, which `caches` is checked for. That it is read behind the write is seen
            # to by the guard, or by the prefix's own shape (kv_cache.py, apply.py).
            prefix = segment_name(site.layer, index, part)
            leaves[prefix] = Memory(root, rows_nHD[:end], name, rows_nHD.size, through)
    return leaves


def _new_rows(new: str, root: str, numbers: Ids, exported: ExportedGraph) -> dict[str, Memory]:
    """The call's rows as they are joined, and what they are a transpose of: the cache update may skip the transpose."""
    found = {new: Memory.own(new, root, numbers)}
    producer = exported.flow.producer(new)
    if producer is not None and producer.op_type == "Transpose":
        perm = attribute(producer, "perm", [3, 2, 1, 0])
        before = numbers.transpose(np.argsort(perm))
        found[producer.input[0]] = Memory.own(producer.input[0], root, before)
    return found


def _cache_sizes(
    plan: RewritePlan, site: AttentionSite, call: Call, segments: Sequence[int]
) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs that only tell the call's lengths: the first layer's, whatever site is looked at."""
    first = min((entry.site for entry in plan.sites), key=lambda planned: planned.layer)
    sizes: dict[str, tuple[int, ...]] = {}
    for one in (site, first):
        sizes[cache_name(one.layer, "key")] = (call.extent, one.kv_heads, one.head_dim)
        sizes[cache_name(one.layer, "value")] = (call.extent, one.kv_heads, one.value_dim)
        for index, end in enumerate(segments):
            sizes[segment_name(one.layer, index)] = (end, one.kv_heads, one.value_dim)
            sizes[segment_name(one.layer, index, "key")] = (end, one.kv_heads, one.head_dim)
    return sizes
