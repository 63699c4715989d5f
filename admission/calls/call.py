"""The sizes of one call: how many tokens it takes, and how many rows the KV cache holds before it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """One stream, `queries` tokens behind `past` cached rows."""

    queries: int
    past: int

    @property
    def extent(self) -> int:
        """Key rows after the call: n."""
        return self.queries + self.past


#: Three calls determine a size that is linear in queries and past; the fourth shows whether it is. No number of theirs
#: is 1 (which broadcasts), and no two calls agree in queries, past or extent.
CALLS = (Call(2, 5), Call(3, 11), Call(5, 7), Call(4, 13))
