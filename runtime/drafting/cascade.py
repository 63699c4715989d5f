"""Two drafters, one behind the other: what is looked up where its evidence is strong, a model's draft elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qbpass.runtime.choosing import Chooser
from qbpass.runtime.drafter import Drafter, Proposal
from qbpass.runtime.drafting.evidence import grade_of

#: Grades of the second drafter are its own and so much: a policy keeps the two apart.
SECOND = 1000
#: From three tokens on a looked-up draft beats a model's: of 1, 2, 3, 6 and 12 this bound replayed best.
STRONG = grade_of(3, 1)


class Cascade:
    """Proposes what `first` does where its grade is `least_grade` or more, and what `second` does elsewhere."""

    def __init__(self, first: Drafter, second: Drafter, least_grade: int = STRONG):
        self.first, self.second, self.least_grade = first, second, least_grade

    def start(self, tokens: Sequence[int], rows: int) -> None:
        self.first.start(tokens, rows)
        self.second.start(tokens, rows)

    def extend(self, tokens: Sequence[int]) -> None:
        self.first.extend(tokens)
        self.second.extend(tokens)

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        """Up to `limit` tokens of one of the two."""
        found = self.first.propose(limit, fork)
        if found.tokens and found.grade >= self.least_grade:
            return found
        drafted = self.second.propose(limit, fork)
        return Proposal(drafted.tokens, SECOND + drafted.grade)
