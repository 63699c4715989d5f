"""The lengths of one call, computed once in the graph and shared by every site."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from qbpass.admission.extents import PAST, QUERIES
from qbpass.rewrites.builder import NodeBuilder


@dataclass
class CallDims:
    """1-D int64 tensors of one element. n: key extent after this call; q: rows of this call; past = n - q.

    row_starts[s], row_ends[s]: the rows of AV segment s; segment_extents[s]: the key extent it reads.
    """

    builder: NodeBuilder
    n: Any
    q: Any
    past: Any
    slots: Any  # (q, 1) int64: the cache rows this call writes
    segment_extents: list[Any] = field(default_factory=list)
    row_ends: list[Any] = field(default_factory=list)
    query_extents: dict[str, Any] = field(default_factory=dict)  # PQ: each query slot's own key extent
    _shapes: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    _sums: dict[tuple[tuple[str, int], ...], Any] = field(default_factory=dict)
    _row_masks: dict[str, Any] = field(default_factory=dict)
    _spare_starts: dict[int, Any] = field(default_factory=dict)

    def shape(self, *dims: Any) -> Any:
        """A 1-D int64 shape of ints and 1-element tensors, built once for each distinct shape."""
        key = tuple(d if isinstance(d, int) else d.name for d in dims)
        if all(isinstance(d, int) for d in dims):
            return self.builder.ints(*dims)
        if key not in self._shapes:
            parts = [self.builder.ints(d) if isinstance(d, int) else d for d in dims]
            self._shapes[key] = self.builder.node("Concat", parts, f"shape/{len(self._shapes)}", axis=0, dtype="int64")
        return self._shapes[key]

    def sum(self, lengths: dict[str, Any], terms: tuple[tuple[str, int], ...]) -> Any:
        """A 1-element int64 tensor: the sum of factor x length over the terms ("1" is the constant), built once."""
        if terms == ((PAST, 1), (QUERIES, 1)):
            return self.n
        if len(terms) == 1 and terms[0][1] == 1:
            return lengths[terms[0][0]]
        if terms not in self._sums:
            total = None
            for symbol, factor in terms:
                scope = f"sum/{len(self._sums)}/{symbol}"
                part = self.builder.ints(factor)
                if symbol in lengths:
                    part = self.builder.node("Mul", [lengths[symbol], part], f"{scope}/part", dtype="int64")
                total = part if total is None else self.builder.node("Add", [total, part], scope, dtype="int64")
            self._sums[terms] = total
        return self._sums[terms]

    def spare_start(self, segment: int) -> Any:
        """The first row of a segment but the first; the call's last row where the segment has none."""
        if segment not in self._spare_starts:
            scope = f"segment{segment}/spare"
            last = self.builder.node("Sub", [self.q, self.builder.ints(1)], f"{scope}/last", dtype="int64")
            bounds = [self.row_ends[segment - 1], last]
            self._spare_starts[segment] = self.builder.node("Min", bounds, f"{scope}/start", dtype="int64")
        return self._spare_starts[segment]

    def row_mask(self, mask: Any) -> Any:
        """A mask (.., q, n) as (.., q, 1, n), so that it broadcasts over scores of one-row products. Once a mask."""
        if mask.name not in self._row_masks:
            self._row_masks[mask.name] = self.builder.node(
                "Unsqueeze", [mask, self.builder.ints(-2)], f"row_mask/{len(self._row_masks)}", dtype=mask.dtype
            )
        return self._row_masks[mask.name]


def emit_call_dims(
    builder: NodeBuilder, token_ids: Any, cache_key: Any, segment_values: list[Any], given_past: Any = None
) -> CallDims:
    """Nodes that read the lengths off the call's own inputs: `cache_key` (n, Hkv, d), `token_ids` (1, q).

    segment_values: the value prefixes (n_s, Hkv, d) of all segments but the last, in order. given_past: (1,) int64
    where it is an input: then the call writes behind that many rows, and n is only what is bound of the cache.
    """
    n = _dim(builder, cache_key, 0, "n")
    q = _dim(builder, token_ids, 1, "q")
    past = builder.node("Sub", [n, q], "past", dtype="int64")
    first, end = past, n
    if given_past is not None:
        first, end = given_past, builder.node("Add", [given_past, q], "end", dtype="int64")
    scalars = [
        builder.node("Squeeze", [t, builder.ints(0)], name, dtype="int64") for t, name in ((first, "lo"), (end, "hi"))
    ]
    positions = builder.node("Range", [*scalars, builder.scalar(1)], "positions", dtype="int64")
    slots = builder.node("Unsqueeze", [positions, builder.ints(1)], "slots", dtype="int64")
    dims = CallDims(builder, n, q, past, slots)
    for index, value in enumerate(segment_values):
        extent = _dim(builder, value, 0, f"segment{index}/n")
        dims.segment_extents.append(extent)
        dims.row_ends.append(builder.node("Sub", [extent, past], f"segment{index}/rows", dtype="int64"))
    dims.segment_extents.append(n)
    dims.row_ends.append(q)
    return dims


def _dim(builder: NodeBuilder, tensor: Any, axis: int, name: str) -> Any:
    shape = builder.node("Shape", [tensor], f"{name}/shape", dtype="int64")
    return builder.node("Slice", [shape, builder.ints(axis), builder.ints(axis + 1)], name, dtype="int64")
