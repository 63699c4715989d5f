"""Rewrites broken on purpose: each wraps a layout's emitter and gets one thing wrong, as a careless edit could."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from qbpass.rewrites.builder import NodeBuilder
from qbpass.rewrites.layouts.context import SiteContext

Emitter = Callable[[NodeBuilder, SiteContext], Any]
Fault = Callable[[Emitter], Emitter]

LAST = np.iinfo(np.int64).max


def _slice(builder: NodeBuilder, data: Any, start: int, end: int, axis: int, name: str, step: int = 1) -> Any:
    bounds = [builder.ints(value) for value in (start, end, axis, step)]
    return builder.node("Slice", [data, *bounds], f"fault/{name}", dtype=data.dtype)


def _reversed(builder: NodeBuilder, data: Any, axis: int, name: str) -> Any:
    return _slice(builder, data, -1, -LAST, axis, name, -1)


def _with_mask(emit: Emitter, builder: NodeBuilder, context: SiteContext, mask: Any) -> Any:
    """The layout with another mask."""
    by_row = builder.node("Unsqueeze", [mask, builder.ints(-2)], "fault/row_mask", dtype=context.mask.dtype)
    return emit(builder, replace(context, mask=mask, row_mask=by_row))


def first_mask_row_for_every_query(emit: Emitter) -> Emitter:
    return lambda b, c: _with_mask(emit, b, c, _rows_of_one(b, c, 0))


def last_mask_row_for_every_query(emit: Emitter) -> Emitter:
    return lambda b, c: _with_mask(emit, b, c, _rows_of_one(b, c, -1))


def _rows_of_one(builder: NodeBuilder, context: SiteContext, row: int) -> Any:
    """The mask with one of its rows in every row's place: (1, 1, q, n)."""
    one = _slice(builder, context.mask, row, row + 1 if row >= 0 else LAST, 2, "mask_row")
    return builder.node("Expand", [one, context.dims.shape(1, 1, context.dims.q, context.dims.n)], "fault/mask")


def mask_rows_shifted_by_one(emit: Emitter) -> Emitter:
    """Query j reads the mask row of query j + 1, the last one the first's."""

    def broken(builder: NodeBuilder, context: SiteContext) -> Any:
        parts = [
            _slice(builder, context.mask, 1, LAST, 2, "rest"),
            _slice(builder, context.mask, 0, 1, 2, "first"),
        ]
        return _with_mask(emit, builder, context, builder.node("Concat", parts, "fault/mask", axis=2))

    return broken


def head_order_reversed(emit: Emitter) -> Emitter:
    return lambda b, c: emit(b, replace(c, q_1HqD=_reversed(b, c.q_1HqD, 1, "heads")))


def kv_heads_interleaved(emit: Emitter) -> Emitter:
    """Query head h reads KV head h % Hkv instead of h // G; outputs are back in head order."""

    def broken(builder: NodeBuilder, context: SiteContext) -> Any:
        site = context.site
        order = [h for kv in range(site.kv_heads) for h in range(site.heads) if h % site.kv_heads == kv]
        back = [order.index(h) for h in range(site.heads)]
        q = builder.node(
            "Gather", [context.q_1HqD, builder.ints(*order)], "fault/q", axis=1, dtype=context.q_1HqD.dtype
        )
        output = emit(builder, replace(context, q_1HqD=q))
        return builder.node("Gather", [output, builder.ints(*back)], "fault/output", axis=1)

    return broken


def output_rows_reversed(emit: Emitter) -> Emitter:
    return lambda b, c: _reversed(b, emit(b, c), 2, "output")


def query_rows_reversed(emit: Emitter) -> Emitter:
    return lambda b, c: emit(b, replace(c, q_1HqD=_reversed(b, c.q_1HqD, 2, "rows")))


def kv_stream_chosen_by_query(emit: Emitter) -> Emitter:
    """Rows folded (query, head) as if they were (head, query): which K and V a row reads depends on its query index."""

    def broken(builder: NodeBuilder, context: SiteContext) -> Any:
        site = context.site
        by_query = builder.node("Transpose", [context.q_1HqD], "fault/by_query", perm=[0, 2, 1, 3])
        by_query.dtype = context.q_1HqD.dtype
        q = builder.reshape(by_query, builder.ints(1, site.heads, -1, site.head_dim), "fault/q")
        output = emit(builder, replace(context, q_1HqD=q))
        rows = builder.reshape(output, builder.ints(1, -1, site.heads, site.value_dim), "fault/rows")
        return builder.node("Transpose", [rows], "fault/output", perm=[0, 2, 1, 3])

    return broken


def every_query_a_stream_of_its_own(emit: Emitter) -> Emitter:
    """Query j reads the past and its own K/V row, but not the rows of the queries before it in the block."""

    def broken(builder: NodeBuilder, context: SiteContext) -> Any:
        dims, dtype = context.dims, context.q_1HqD.dtype
        bounds = [builder.node("Squeeze", [t], f"fault/{name}") for t, name in ((dims.past, "past"), (dims.n, "n"))]
        columns = builder.node("Range", [builder.scalar(0), bounds[1], builder.scalar(1)], "fault/columns")
        own = builder.node("Equal", [columns, dims.slots], "fault/own")  # slots: (q, 1), each row's own column
        past = builder.node("Less", [columns, bounds[0]], "fault/is_past")
        seen = builder.node("Or", [own, past], "fault/seen", dtype="bool")
        number = builder.node("Cast", [seen], "fault/seen_number", to=1)
        hidden = builder.node("Log", [number], "fault/hidden", dtype=dtype)  # 0 where seen, -inf elsewhere
        mask = builder.node("Add", [context.mask, hidden], "fault/mask", dtype=dtype)
        return _with_mask(emit, builder, context, mask)

    return broken


FAULTS: tuple[Fault, ...] = (
    first_mask_row_for_every_query,
    last_mask_row_for_every_query,
    mask_rows_shifted_by_one,
    head_order_reversed,
    kv_heads_interleaved,
    output_rows_reversed,
    query_rows_reversed,
    kv_stream_chosen_by_query,
    every_query_a_stream_of_its_own,
)
