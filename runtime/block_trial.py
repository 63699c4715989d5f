"""Blocks of a target against rows alone, byte for byte: what every trial of a whole decoder feeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qbpass.runtime.target import Target

#: Rows that are tried behind each prompt: blocks of every width lie on both sides of every extent modulo 4.
ROWS = 9


def rows_alone(serial: Target, tokens: Sequence[int]) -> list[np.ndarray]:
    """(vocabulary,) each: the logits behind each of `tokens`, fed one at a time behind what `serial` holds."""
    return [serial.verify([token])[0].copy() for token in tokens]


def differing_row(
    target: Target, tokens: Sequence[int], wanted: Sequence[np.ndarray], widest: int
) -> tuple[int, dict[str, Any] | None]:
    """Feed `tokens` in blocks of 1 to `widest` rows, each width from the rows that `target` holds now.

    Rows compared, and the first that is not the wanted one as {"past", "queries", "row", "max_abs_difference"}.
    """
    rows, base = 0, target.length
    for width in range(1, widest + 1):
        target.rollback(base)
        for start in range(0, len(tokens), width):
            block = target.verify(tokens[start : start + width])
            for row, (got, want) in enumerate(zip(block, wanted[start : start + width], strict=True)):
                rows += 1
                if got.tobytes() != want.tobytes():
                    gap = float(np.max(np.abs(got.astype(np.float64) - want.astype(np.float64))))
                    where = {"past": base + start, "queries": len(block), "row": row}
                    return rows, {**where, "max_abs_difference": gap}
    return rows, None
