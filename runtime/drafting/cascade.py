"""Two drafters, one behind the other: what is looked up where its evidence is strong, a model's draft elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qbpass.runtime.choosing import Chooser
from qbpass.runtime.drafter import Drafter, Proposal

#: Grades of the second drafter are its own and so much: a policy keeps the two apart.
SECOND = 1000


class Cascade:
    """Proposes what `first` does where its grade is `least_grade` or more, and what `second` does elsewhere.

    Replayed with a suffix drafter before a model's draft, a least grade of 7, three tokens and more, did best.
    """

    def __init__(self, first: Drafter, second: Drafter, least_grade: int):
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
