"""What a drafted token costs, by the grade of its proposal: nothing worth counting where it is looked up."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from statistics import median

#: The latest proposals of a grade whose median counts.
WINDOW = 9
#: What a proposal's grade is worth, as a share of how often each occurs, after each further proposal.
KEPT = 0.97


@dataclass
class DraftCosts:
    _seconds: defaultdict[int, deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque[float](maxlen=WINDOW))
    )
    _share: dict[int, float] = field(default_factory=dict)

    def observe(self, grade: int, tokens: int, seconds: float) -> None:
        """A proposal of so many tokens, at least one, took so long."""
        self._seconds[grade].append(seconds / tokens)
        self._share = {each: share * KEPT for each, share in self._share.items()}
        self._share[grade] = self._share.get(grade, 0.0) + 1 - KEPT

    @property
    def seen(self) -> bool:
        return bool(self._share)

    def token_seconds(self, grade: int) -> float:
        """Of one token of such a proposal; 0 where none was seen."""
        return median(self._seconds[grade]) if self._seconds[grade] else 0.0

    @property
    def dearest(self) -> float:
        """Seconds of a token of the dearest grade."""
        return max((self.token_seconds(grade) for grade in self._share), default=0.0)

    def shares(self) -> dict[int, float]:
        """How often a proposal is of each grade; together 1."""
        total = sum(self._share.values())
        return {grade: share / total for grade, share in self._share.items()}
