"""Drafters and policies over recorded requests, without a model: the engine's transaction, on a clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qbpass.runtime.choosing import GREEDY, Chooser
from qbpass.runtime.drafter import Drafter, Proposal
from qbpass.runtime.policy import DraftingPolicy, Round
from qbpass.runtime.stops import Stops
from qbpass.runtime.transaction import State, Transaction

#: Of a call, by its rows and the rows in the KV cache.
Seconds = Callable[[int, int], float]


@dataclass(frozen=True)
class Recorded:
    """One request and what serial decoding answered, as token ids. prefill: its seconds, in calls of one row."""

    id: str
    domain: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    prefill: float = 0.0

    def dense(self) -> Recorded:
        """The same with tokens numbered by their first appearance: a vocabulary as small as it can be."""
        numbers: dict[int, int] = {}
        whole = [numbers.setdefault(token, len(numbers)) for token in (*self.prompt, *self.output)]
        prompt = len(self.prompt)
        return replace(self, prompt=tuple(whole[:prompt]), output=tuple(whole[prompt:]))


class Clock:
    """Seconds that pass when something says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class RecordedTarget:
    """Says what was recorded, whatever it is fed, and takes the seconds of a cost curve for it."""

    def __init__(self, recorded: Recorded, seconds: Seconds, clock: Clock, max_queries: int):
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
    """Seconds. spent: of all rounds; serial: of as many calls of one row; prefill: of the prompt, with and without
    speculation.
    """

    spent: float
    serial: float
    prefill: float
    rounds: tuple[Round, ...]

    @property
    def ratio(self) -> float:
        """Of the whole request, serial decoding over this."""
        return (self.prefill + self.serial) / (self.prefill + self.spent)


def replay(
    recorded: Recorded,
    drafter: Drafter,
    policy: DraftingPolicy,
    seconds: Seconds,
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
    prefill = recorded.prefill * seconds(1, len(recorded.prompt))
    return Replay(clock.now, serial, prefill, tuple(rounds))


class _Timed:
    """A drafter whose proposals take time of a clock."""

    def __init__(self, drafter: Drafter, clock: Clock, token_seconds: Callable[[int], float]):
        self._drafter, self._clock, self._token_seconds = drafter, clock, token_seconds
        self.start, self.extend = drafter.start, drafter.extend

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        proposal = self._drafter.propose(limit, fork)
        self._clock.now += len(proposal.tokens) * self._token_seconds(proposal.grade)
        return proposal


def curve_of(costs: Mapping[int, Mapping[int, float]]) -> Seconds:
    """A straight line for each width, through costs[rows in the cache][rows of the call], extended at both ends."""
    extents = sorted(costs)

    def seconds(rows: int, extent: int) -> float:
        right = next((index for index in range(1, len(extents)) if extent <= extents[index]), len(extents) - 1)
        low, high = extents[right - 1], extents[right]
        slope = (costs[high][rows] - costs[low][rows]) / (high - low)
        # Timings may have it that more is faster; a call takes some time in any case.
        return max(costs[low][rows] + slope * (extent - low), min(costs[low][rows], costs[high][rows]) / 2)

    return seconds


def acceptance_by_grade(
    requests: Sequence[Recorded], drafter: Callable[[], Drafter], most: int
) -> list[dict[str, Any]]:
    """For each grade: how many proposals had it, and the share of them whose first 1, 2, ... tokens were right.

    The drafter is asked at every position, whatever it said before.
    """
    counted: dict[int, list[int]] = {}
    for request in requests:
        proposes = drafter()
        proposes.start(request.prompt, len(request.prompt) + len(request.output))
        for index, token in enumerate(request.output[:-1]):
            proposes.extend([token])
            proposal = proposes.propose(most, GREEDY.fork)
            if not proposal.tokens:
                continue
            counts = counted.setdefault(proposal.grade, [0] * (most + 1))
            counts[0] += 1
            for place, (said, wanted) in enumerate(zip(proposal.tokens, request.output[index + 1 :], strict=False)):
                if said != wanted:
                    break
                counts[place + 1] += 1
    return [
        {"grade": grade, "proposals": counts[0], "accepted": [count / counts[0] for count in counts[1:]]}
        for grade, counts in sorted(counted.items())
    ]
