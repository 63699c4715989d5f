"""An axis' length as a call decides it: so many for each row of the call, so many for each key, and a constant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Size:
    """rows * q + keys * n + fixed, for a call of q rows whose last row reads n keys."""

    rows: int = 0
    keys: int = 0
    fixed: int = 0

    def at(self, q: int, n: int) -> int:
        return self.rows * q + self.keys * n + self.fixed

    @property
    def is_fixed(self) -> bool:
        return self.rows == self.keys == 0

    @property
    def is_rows(self) -> bool:
        """A whole number of entries for each row of the call."""
        return self.rows > 0 and self.keys == self.fixed == 0

    @property
    def is_keys(self) -> bool:
        """One entry for each key a row may read, those of this call's own rows included."""
        return self.keys == 1 and self.rows == self.fixed == 0

    @property
    def is_past(self) -> bool:
        """One entry for each key that was there before this call."""
        return self.keys == 1 and self.rows == -1 and self.fixed == 0

    def __str__(self) -> str:
        parts = [_term(self.keys, "n"), _term(self.rows, "q"), f"{self.fixed:+d}" if self.fixed else ""]
        return "".join(parts).lstrip("+") or "0"


def fixed(*lengths: int) -> tuple[Size, ...]:
    """Axes whose lengths no call changes."""
    return tuple(Size(fixed=length) for length in lengths)


def fit_size(lengths: Sequence[int], calls: Sequence[tuple[int, int]]) -> Size | None:
    """The Size that gives `lengths` in `calls` of (q, n); None where no whole numbers do."""
    system = np.array([(q, n, 1) for q, n in calls], np.float64)
    solution = np.rint(np.linalg.lstsq(system, np.array(lengths, np.float64), rcond=None)[0])
    size = Size(*(int(value) for value in solution))
    fits = all(size.at(q, n) == length for (q, n), length in zip(calls, lengths, strict=True))
    return size if fits else None


def _term(factor: int, symbol: str) -> str:
    if factor == 0:
        return ""
    return f"{'+' if factor > 0 else '-'}{'' if abs(factor) == 1 else abs(factor)}{symbol}"
