"""Drafters and policies over recorded requests, without a model: the engine's transaction, on a clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qbpass.runtime.choosing import GREEDY
from qbpass.runtime.drafter import Drafter
from qbpass.runtime.policy import DraftingPolicy, Round
from qbpass.runtime.stops import Stops
from qbpass.runtime.transaction import State, Transaction


@dataclass(frozen=True)
class Recorded:
    """One request and what serial decoding answered, as token ids."""

    id: str
    domain: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]

    def dense(self) -> Recorded:
        """The same with tokens numbered by their first appearance: a vocabulary as small as it can be."""
        numbers: dict[int, int] = {}
        whole = [numbers.setdefault(token, len(numbers)) for token in (*self.prompt, *self.output)]
        return Recorded(self.id, self.domain, tuple(whole[: len(self.prompt)]), tuple(whole[len(self.prompt) :]))


class Clock:
    """Seconds that pass when something says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class RecordedTarget:
    """Says what was recorded, whatever it is fed, and takes the seconds of a cost curve for it."""

    def __init__(self, recorded: Recorded, seconds: Callable[[int, int], float], clock: Clock, max_queries: int):
        """seconds: of a call, by its rows and the rows in the KV cache."""
        self.sequence = (*recorded.prompt, *recorded.output)
        self.vocab_size = max(self.sequence) + 1
        self.context_length = None
        self.max_queries = max_queries
        self.length = 0
        self._seconds, self._clock = seconds, clock

    def start(self, rows: int) -> None:
        del rows
        self.length = 0

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        self.length = len(tokens)
        return self._logits(1)

    def verify(self, tokens: Sequence[int]) -> np.ndarray:
        self._clock.now += self._seconds(len(tokens), self.length)
        self.length += len(tokens)
        return self._logits(len(tokens))

    def rollback(self, length: int) -> None:
        self.length = length

    def _logits(self, rows: int) -> np.ndarray:
        logits = np.zeros((rows, self.vocab_size), np.float32)
        for row in range(rows):
            position = self.length - rows + 1 + row
            if position < len(self.sequence):
                logits[row, self.sequence[position]] = 1.0
        return logits


@dataclass(frozen=True)
class Replay:
    """seconds: of all rounds; serial: of as many calls of one row."""

    tokens: int
    seconds: float
    serial: float
    rounds: tuple[Round, ...]

    @property
    def ratio(self) -> float:
        return self.serial / self.seconds if self.seconds else 1.0


def replay(
    recorded: Recorded,
    drafter: Drafter,
    policy: DraftingPolicy,
    seconds: Callable[[int, int], float],
    *,
    max_queries: int,
    k: int | None = None,
    token_seconds: Callable[[int], float] = lambda grade: 0.0,
) -> Replay:
    """token_seconds: of a drafted token, by its grade."""
    recorded, clock = recorded.dense(), Clock()
    target = RecordedTarget(recorded, seconds, clock, max_queries)
    transaction = Transaction(
        target,
        _Timed(drafter, clock, token_seconds),
        policy,
        limit=len(recorded.output),
        limit_reason="max_new_tokens",
        k=max_queries - 1 if k is None else k,
        clock=clock,
    )
    rounds = []
    transaction.begin(recorded.prompt, GREEDY, Stops())
    while True:
        transaction.commit()
        done = transaction.reconcile()
        rounds += [done] if done is not None else []
        if transaction.state is State.STOPPED:
            break
        transaction.propose()
        transaction.verify()
    assert tuple(transaction.output) == recorded.output
    serial = sum(seconds(1, len(recorded.prompt) + row) for row in range(len(recorded.output) - 1))
    return Replay(len(recorded.output), clock.now, serial, tuple(rounds))


class _Timed:
    """A drafter whose proposals take time of a clock."""

    def __init__(self, drafter: Drafter, clock: Clock, token_seconds: Callable[[int], float]):
        self._drafter, self._clock, self._token_seconds = drafter, clock, token_seconds
        self.start, self.extend = drafter.start, drafter.extend

    def propose(self, limit, fork):  # type: ignore[no-untyped-def]
        proposal = self._drafter.propose(limit, fork)
        self._clock.now += len(proposal.tokens) * self._token_seconds(proposal.grade)
        return proposal


def curve(ratios: Mapping[int, float], row_seconds: float, growth: float) -> Callable[[int, int], float]:
    """A cost curve: `row_seconds` of one row behind an empty cache, `growth` of it more for each row in the cache."""
    return lambda rows, extent: row_seconds * ratios[rows] * (1 + growth * extent)
