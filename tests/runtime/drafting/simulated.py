"""A scripted target that takes time on a clock of the test's own, and drafters that are right when they are told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from fake_target import FakeTarget

from qbpass.runtime.choosing import GREEDY, Chooser
from qbpass.runtime.drafter import Drafter, Proposal
from qbpass.runtime.policy import DraftingPolicy, Round
from qbpass.runtime.stops import Stops
from qbpass.runtime.transaction import State, Transaction

VOCABULARY = 50
PROMPT = tuple(range(1, 9))


def said(position: int) -> int:
    """What the target says at a position."""
    return (position * position * 7 + position) % VOCABULARY


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedTarget(FakeTarget):
    """seconds: of a call of so many rows behind so many."""

    def __init__(self, seconds: Callable[[int, int], float], clock: Clock, max_queries: int):
        super().__init__(lambda tokens: said(len(tokens)), VOCABULARY, max_queries=max_queries)
        self.seconds, self.clock = seconds, clock

    def verify(self, tokens: Sequence[int]) -> np.ndarray:
        self.clock.now += self.seconds(len(tokens), self.length)
        return super().verify(tokens)


class ToldDrafter:
    """Says at every position what the target will, or another token where `right` says no.

    token_seconds: what one token takes on the clock. grade: of its proposals, by the position they begin at.
    """

    def __init__(
        self,
        right: Callable[[int], bool],
        clock: Clock,
        token_seconds: float = 0.0,
        grade: Callable[[int], int] = lambda position: 0,
    ):
        self.right, self.clock, self.token_seconds, self.grade = right, clock, token_seconds, grade
        self.length = 0

    def start(self, tokens: Sequence[int], rows: int) -> None:
        del rows
        self.length = len(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        self.length += len(tokens)

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        del fork
        self.clock.now += limit * self.token_seconds
        places = range(self.length, self.length + limit)
        tokens = tuple((said(place) + (not self.right(place))) % VOCABULARY for place in places)
        return Proposal(tokens, self.grade(self.length))


def simulate(
    target: TimedTarget, drafter: Drafter, policy: DraftingPolicy, tokens: int
) -> tuple[list[Round], list[float]]:
    """One request of so many tokens. Its rounds, and what the clock says behind each of them."""
    clock = target.clock
    transaction = Transaction(
        target,
        drafter,
        policy,
        limit=tokens,
        limit_reason="max_new_tokens",
        k=target.max_queries - 1,
        clock=clock,
    )
    transaction.begin(PROMPT, GREEDY, Stops())
    rounds, times = [], []
    while True:
        transaction.commit()
        done = transaction.reconcile()
        if done is not None:
            rounds.append(done)
            times.append(clock.now)
        if transaction.state is State.STOPPED:
            assert transaction.output == [said(len(PROMPT) + index) for index in range(tokens)]
            return rounds, times
        transaction.propose()
        transaction.verify()
