"""The forced replay: the reference's own tokens in blocks of every width at every alignment, logits compared byte for
byte.

Endpoints can agree by luck: an argmax forgives. A row of logits does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from qbpass.runtime.target import Target


@dataclass(frozen=True)
class RowDifference:
    """past: rows in the cache when the block was fed; row: which row of it."""

    prompt: str
    past: int
    queries: int
    row: int
    max_abs_difference: float


@dataclass
class ReplayCount:
    """rows by (block width, key extent of the block's first row modulo 4); rows, and equal ones, by block width."""

    rows: int = 0
    equal: int = 0
    first: RowDifference | None = None
    by_width_and_alignment: dict[tuple[int, int], int] = field(default_factory=dict)
    rows_by_width: dict[int, int] = field(default_factory=dict)
    equal_by_width: dict[int, int] = field(default_factory=dict)


def serial_rows(target: Target, prompt: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
    """(len(tokens), vocabulary): the reference's logits behind each of `tokens`, fed one at a time."""
    target.start(len(prompt) + len(tokens))
    target.prefill(prompt)
    return np.concatenate([target.verify([token]).copy() for token in tokens])


def replay(
    target: Target, prompt_id: str, prompt: Sequence[int], tokens: Sequence[int], wanted: np.ndarray, count: ReplayCount
) -> None:
    """Feed `tokens` in blocks of 1 .. max_queries rows, each width from every offset below it, against `wanted`."""
    target.start(len(prompt) + len(tokens))
    target.prefill(prompt)
    base = target.length
    for width in range(1, target.max_queries + 1):
        for offset in range(width):
            target.rollback(base)
            _feed(target, prompt_id, tokens, wanted, _blocks(len(tokens), width, offset), count)


def _blocks(total: int, width: int, offset: int) -> list[tuple[int, int]]:
    """[start, end) of a first block of `offset` rows, then blocks of `width`, the last possibly shorter."""
    starts = [0, *range(offset, total, width)] if offset else list(range(0, total, width))
    ends = [*starts[1:], total]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if start < end]


def _feed(
    target: Target,
    prompt_id: str,
    tokens: Sequence[int],
    wanted: np.ndarray,
    blocks: list[tuple[int, int]],
    count: ReplayCount,
) -> None:
    for start, end in blocks:
        past = target.length
        logits = target.verify(tokens[start:end])
        key = (end - start, (past + 1) % 4)
        count.by_width_and_alignment[key] = count.by_width_and_alignment.get(key, 0) + end - start
        before = count.equal
        for row in range(end - start):
            count.rows += 1
            got, want = logits[row], wanted[start + row]
            if got.tobytes() == want.tobytes():
                count.equal += 1
            elif count.first is None:
                gap = float(np.max(np.abs(got.astype(np.float64) - want.astype(np.float64))))
                count.first = RowDifference(prompt_id, past, end - start, row, gap)
        width = end - start
        count.rows_by_width[width] = count.rows_by_width.get(width, 0) + width
        count.equal_by_width[width] = count.equal_by_width.get(width, 0) + count.equal - before
