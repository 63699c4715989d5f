"""Which prefix of the keys and values a row of a block may read.

A row evaluated alone reads exactly its own key extent. In a block it could read further, masked columns; on ONNX
Runtime's CPU provider that changes an AV product of one row when the row's own extent leaves a remainder of three
(MLAS sums four value rows at a time: a remainder of three is summed as a pair and a single, but as one four once a
zero-weight column follows). So rows are grouped into segments, and each segment reads a prefix that ends where a row
that can't bear a tail ends. Which extents can't is measured (`falsify.py`), not assumed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExtentRule:
    """Extents n with n % modulus in residues must be the last column their row reads."""

    modulus: int
    residues: tuple[int, ...]

    def exact(self, extent: int) -> bool:
        return extent % self.modulus in self.residues

    def segments(self, max_queries: int) -> int:
        """The most segments a block of up to `max_queries` rows can need, over every alignment."""
        widest = 1
        for start in range(self.modulus):
            rows = range(start + 1, start + max_queries)  # the last row never needs a segment of its own
            widest = max(widest, 1 + sum(self.exact(extent) for extent in rows))
        return widest


NO_TAIL_EFFECT = ExtentRule(1, ())
EVERY_ROW_EXACT = ExtentRule(1, (0,))


def segment_extents(past: int, queries: int, rule: ExtentRule, segments: int) -> list[int]:
    """The key extents that `segments` segments of a block read; the last is past + queries.

    Rows past + 1 .. past + queries (by their own extents) go to the first segment whose extent is not smaller.
    Unused segments repeat the full extent and hold no rows.
    """
    full = past + queries
    ends = [extent for extent in range(past + 1, full) if rule.exact(extent)]
    if len(ends) >= segments:
        raise ValueError(f"{queries} rows behind {past} need {len(ends) + 1} segments, the graph has {segments}")
    return ends + [full] * (segments - len(ends))
