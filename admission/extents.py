"""Symbolic dimensions as sums in the decoder's own terms: `queries` (rows in this call), `past` (rows in the KV cache).

An exporter names the same size differently from layer to layer ("s10 + s70", "s70 + s84"); whether two axes have one
extent is asked of these sums.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from qbpass.admission.shapes import Dim, Shape
from qbpass.models.contract import DecoderContract

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


@dataclass(frozen=True)
class ExtentTable:
    """What each symbol of a graph stands for."""

    symbols: dict[str, Extent]

    @classmethod
    def of(cls, contract: DecoderContract, shapes: dict[str, Shape]) -> ExtentTable:
        """Read the symbols off the contract's inputs, then its outputs (a present extent may have its own symbol)."""
        table = cls({})
        table._bind(shapes.get(contract.input_ids), 1, QUERY_ROWS)
        table._bind(shapes.get(contract.position_ids or ""), 1, QUERY_ROWS)
        for pair in contract.kv:
            for name in (pair.past_key, pair.past_value):
                table._bind(shapes.get(name), 2, Extent.of(past=1))
        table._bind(shapes.get(contract.attention_mask or ""), 1, KEY_ROWS)
        for pair in contract.kv:
            for name in (pair.present_key, pair.present_value):
                table._bind(shapes.get(name), 2, KEY_ROWS)
        return table

    def _bind(self, shape: Shape | None, axis: int, extent: Extent) -> None:
        symbol = shape[axis] if shape is not None and axis < len(shape) else None
        # A present extent written as a sum ("s10 + s70") is read as that sum, so a wrong one stays visible.
        if isinstance(symbol, str) and _is_plain(symbol):
            self.symbols.setdefault(symbol, extent)

    def read(self, dim: Dim) -> Extent | None:
        """A dimension as an extent. A symbol that the contract does not know stands for itself."""
        if dim is None:
            return None
        if isinstance(dim, int):
            return Extent.constant(dim)
        total: Counter[str] = Counter()
        for part in dim.split("+"):
            factor, symbol = _read_product(part.strip())
            known = self.symbols.get(symbol) or Extent.sum(Counter({symbol: 1}))
            for name, count in known.terms:
                total[name] += factor * count
        return Extent.sum(total)


def _is_plain(symbol: str) -> bool:
    return symbol.replace("_", "").replace(".", "").isalnum()


def _read_product(part: str) -> tuple[int, str]:
    """`3`, `s7` or `2*s7` as (factor, symbol); anything else is one opaque symbol."""
    if part.isdecimal():
        return int(part), ONE
    left, star, right = part.partition("*")
    if star and left.strip().isdecimal():
        return int(left), right.strip()
    return 1, part
