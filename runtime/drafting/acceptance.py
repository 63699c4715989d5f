"""How often proposed tokens are what the target says, by their grade and their place in the proposal.

A proposal is judged by the tokens that became visible behind it, whether it was verified, in part or at all. So what
was withheld teaches as much as what was tried, and costs nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

#: A priori a token is accepted so often, and that is worth so many observations.
PRIOR, PRIOR_WEIGHT = 0.4, 2.0
#: What an observation is worth after each further one of its kind: of all requests, of this one.
KEPT_EVER, KEPT_HERE = 0.99, 0.93
#: The weight of all requests' rate beside this one's observations.
EVER_WEIGHT = 3.0


@dataclass
class _Rate:
    """hits of trials, both faded."""

    trials: float = 0.0
    hits: float = 0.0

    def add(self, hit: bool, kept: float) -> None:
        self.trials = self.trials * kept + 1.0
        self.hits = self.hits * kept + hit

    def with_prior(self, mean: float, weight: float, misses: float = 0.0) -> float:
        return (mean * weight + self.hits) / (weight + self.trials + misses)


@dataclass
class _Waiting:
    """A proposal whose first `matched` tokens became visible."""

    grade: int
    tokens: tuple[int, ...]
    matched: int = 0


@dataclass
class Acceptance:
    """Rates by (grade, place), a place counted only where all before it were accepted."""

    _ever: defaultdict[tuple[int, int], _Rate] = field(default_factory=lambda: defaultdict(_Rate))
    _here: defaultdict[tuple[int, int], _Rate] = field(default_factory=lambda: defaultdict(_Rate))
    _waiting: list[_Waiting] = field(default_factory=list)

    def new_request(self) -> None:
        self._here.clear()
        self._waiting.clear()

    def proposed(self, grade: int, tokens: Sequence[int]) -> None:
        """These tokens may follow what is visible now."""
        self._waiting.append(_Waiting(grade, tuple(tokens)))

    def visible(self, tokens: Sequence[int]) -> None:
        """These tokens did follow."""
        for token in tokens:
            self._waiting = [each for each in self._waiting if self._judge(each, token)]

    def _judge(self, waiting: _Waiting, token: int) -> bool:
        """Whether more of it can be judged behind this token."""
        hit = waiting.tokens[waiting.matched] == token
        key = (waiting.grade, waiting.matched)
        self._ever[key].add(hit, KEPT_EVER)
        self._here[key].add(hit, KEPT_HERE)
        waiting.matched += 1
        return hit and waiting.matched < len(waiting.tokens)

    def expected(self, grade: int, most: int, misses: float = 0.0) -> list[float]:
        """expected[k]: how many of the first k tokens of a proposal will be accepted, k from 0 to `most`.

        A place that was never judged is taken for as good as the one before it. misses: as if each place had failed
        so many times more in this request.
        """
        expected, all_so_far, rate = [0.0], 1.0, PRIOR
        for place in range(most):
            rate = self._ever[grade, place].with_prior(rate, PRIOR_WEIGHT)
            all_so_far *= self._here[grade, place].with_prior(rate, EVER_WEIGHT, misses)
            expected.append(expected[-1] + all_so_far)
        return expected
