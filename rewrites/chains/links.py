"""Which rows each link of a chain holds in a call, and the lengths it is told: computed once a call, for all sites.

In a phase of the layout, link j holds row j of the call. In a native phase, link 0 holds every row, as exported. A link
without a row of its own holds row 0 behind an empty cache: one key, in scratch memory. The operator takes no empty
rows, and the least it can be given costs next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from qbpass.rewrites.builder import NodeBuilder


@dataclass(frozen=True)
class Link:
    """start, end: rows [start, end) of the call, 1-D int64 of one element. there: 1-D bool, or None for link 0."""

    start: Any
    end: Any
    there: Any


@dataclass
class Links:
    """The links of one call. q: its rows, 1-D int64 of one element."""

    builder: NodeBuilder
    q: Any
    links: list[Link]
    _lengths: dict[tuple[str, str, int], Any] = field(default_factory=dict)
    _columns: dict[tuple[str, int], Any] = field(default_factory=dict)

    def lengths(self, seqlens_k: Any, total: Any, number: int) -> tuple[Any, Any]:
        """(seqlens_k, total_sequence_length) of a link, int32: its last row's position, and how many keys that is.

        seqlens_k, total: the whole call's.
        """
        link, alone = self.links[number], self.links[number].there is not None
        found = []
        for name, tensor, of_none in (("seqlens_k", seqlens_k, 0), ("total", total, 1)):
            key = (name, tensor.name, number)
            if key not in self._lengths:
                scope = f"link{number}/{name}/{len(self._lengths)}"
                behind = self.builder.node("Sub", [self.q, link.end], f"{scope}/rows_behind", dtype="int64")
                behind = self.builder.node("Cast", [behind], f"{scope}/behind", to=6, dtype="int32")
                length = self.builder.node("Sub", [tensor, behind], f"{scope}/reached", dtype="int32")
                if alone:
                    empty = self.builder.int32s(of_none)
                    length = self.builder.node("Where", [link.there, length, empty], scope, dtype="int32")
                self._lengths[key] = length
            found.append(self._lengths[key])
        return found[0], found[1]

    def columns(self, total: Any, number: int) -> Any:
        """A link's key extent as 1-D int64, for slices of what has a column for each key."""
        key = (total.name, number)
        if key not in self._columns:
            scope = f"link{number}/columns/{len(self._columns)}"
            wide = self.builder.node("Cast", [total], f"{scope}/wide", to=7, dtype="int64")
            self._columns[key] = self.builder.reshape(wide, self.builder.ints(1), scope)
        return self._columns[key]


def emit_links(builder: NodeBuilder, token_ids: Any, active: Any, max_queries: int) -> Links:
    """active: scalar bool tensor of a guarded graph; True or False in a straight-line one. `token_ids` (1, q)."""
    shape = builder.node("Shape", [token_ids], "rows/shape", dtype="int64")
    q = builder.node("Slice", [shape, builder.ints(1), builder.ints(2)], "rows", dtype="int64")
    if active is False:
        return Links(builder, q, [Link(builder.ints(0), q, None)])
    first = builder.ints(1)
    if active is not True:
        first = builder.node("Where", [active, builder.ints(1), q], "link0/end", dtype="int64")
    links = [Link(builder.ints(0), first, None)]
    for number in range(1, max_queries):
        there = builder.node("Less", [builder.ints(number), q], f"link{number}/has_row", dtype="bool")
        if active is not True:
            there = builder.node("And", [active, there], f"link{number}/there", dtype="bool")
        start = builder.node("Where", [there, builder.ints(number), builder.ints(0)], f"link{number}/start")
        start.dtype = first.dtype
        end = builder.node("Add", [start, builder.ints(1)], f"link{number}/end", dtype="int64")
        links.append(Link(start, end, there))
    return Links(builder, q, links)
