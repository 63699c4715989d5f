"""Dimensions as sums in the decoder's own terms: `queries` (rows in this call), `past` (rows in the KV cache).

An exporter names the same size differently from layer to layer ("s10 + s70", "s70 + s84"); whether two axes have one
extent is asked of these sums.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

QUERIES, PAST, ONE = "queries", "past", "1"


@dataclass(frozen=True)
class Extent:
    """A sum of symbols with integer coefficients; the symbol "1" carries the constant part."""

    terms: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, **terms: int) -> Extent:
        return cls.sum(Counter(terms))

    @classmethod
    def sum(cls, terms: Counter[str]) -> Extent:
        return cls(tuple(sorted((symbol, factor) for symbol, factor in terms.items() if factor)))

    @classmethod
    def constant(cls, value: int) -> Extent:
        return cls.sum(Counter({ONE: value}))

    def value(self) -> int | None:
        """The constant this extent is, or None where it depends on a symbol."""
        if any(symbol != ONE for symbol, _ in self.terms):
            return None
        return sum(factor for _, factor in self.terms)

    def at(self, queries: int, past: int) -> int | None:
        """The size for one call; None where another symbol takes part."""
        known = {QUERIES: queries, PAST: past, ONE: 1}
        if any(symbol not in known for symbol, _ in self.terms):
            return None
        return sum(known[symbol] * factor for symbol, factor in self.terms)

    def __str__(self) -> str:
        return " + ".join(symbol if factor == 1 else f"{factor}*{symbol}" for symbol, factor in self.terms) or "0"


QUERY_ROWS = Extent.of(queries=1)
KEY_ROWS = Extent.of(queries=1, past=1)
