"""One request as a state machine: propose, verify, commit, reconcile, until it stops.

                 begin                commit               reconcile
    IDLE ───────────────▶ VERIFIED ───────────▶ COMMITTED ──────────────▶ PENDING ──┐
                             ▲                                  └───▶ STOPPED       │
                             └───────────── PROPOSED ◀──────────────────────────────┘
                                 verify                     propose

What holds in PENDING and in STOPPED, and is checked there: every visible token but the last is a row of the target's KV
cache, in order, and no other row is; the last one is pending, and the next verification consumes it, exactly once.
Prefill leaves logits and no proposal, so that the first token is committed as every other is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import Enum

import numpy as np

from qbpass.runtime.choosing import Chooser, Choosing
from qbpass.runtime.drafter import Drafter, Proposal
from qbpass.runtime.endpoint import StopReason
from qbpass.runtime.policy import DraftingPolicy, Round
from qbpass.runtime.sampling.errors import SamplingError
from qbpass.runtime.stops import Stops
from qbpass.runtime.target import Target
from qbpass.runtime.trace import Trace
from qbpass.runtime.verification import Verdict, judge


class State(Enum):
    IDLE = "idle"
    VERIFIED = "verified"  # logits are available, nothing is chosen from them
    COMMITTED = "committed"  # tokens are visible; the KV cache still holds rejected rows
    PENDING = "pending"  # the last visible token waits to be consumed
    PROPOSED = "proposed"  # and tokens behind it wait to be verified
    STOPPED = "stopped"


class Transaction:
    """Of one request. Every method is one arrow of the diagram; out of order it raises AssertionError."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        policy: DraftingPolicy,
        *,
        limit: int,
        limit_reason: StopReason,
        k: int | None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        """limit: the most tokens to generate, `limit_reason` what reaching it is called. k: the most proposed at once;
        None: what the target's width allows, which bounds it in any case.
        clock: seconds; for the policy and the trace alone.
        """
        self.target, self.drafter, self.policy = target, drafter, policy
        self.limit, self.limit_reason = limit, limit_reason
        widest = target.max_queries - 1
        self.k = widest if k is None else min(k, widest)
        self.trace = Trace()
        self.state = State.IDLE
        self.stop_reason: StopReason | None = None
        self.output: list[int] = []  # visible tokens behind the prompt
        self._clock = clock

    @property
    def pending(self) -> int:
        """The last visible token, which is no row of the KV cache yet."""
        return self.output[-1]

    def begin(self, prompt: Sequence[int], choosing: Choosing, stops: Stops) -> None:
        """Evaluate the prompt. The cache, the drafter and the states of choosing and stopping are this request's own
        from here on.
        """
        self._move({State.IDLE}, State.VERIFIED)
        self.trace.prompt_tokens = len(prompt)
        rows = len(prompt) + self.limit
        self.target.start(rows)
        self.policy.start(len(prompt))
        self.drafter.start(prompt, rows)
        self._chooser: Chooser = choosing.begin(prompt, self.target.vocab_size)
        self._watch = stops.begin()
        self._proposal, self._asked = Proposal(), 0
        self._drafted, self._draft_seconds, self._verify_seconds = 0, 0.0, 0.0
        self._logits_QV: np.ndarray = self.target.prefill(prompt)
        self._rows = self.target.length

    def propose(self) -> None:
        """Ask the policy how many tokens, and the drafter for them."""
        self._move({State.PENDING}, State.PROPOSED)
        self._rows = self.target.length
        # The round commits one token more than it accepts, and no row may lie behind the limit.
        room = max(min(self.k, self.limit - len(self.output) - 1), 0)
        self._asked = min(self.policy.limit(room, self._rows), room) if room else 0
        self._proposal, self._drafted, self._draft_seconds = Proposal(), 0, 0.0
        if self._asked > 0:
            before = self._clock()
            try:
                drafted = self.drafter.propose(self._asked, self._chooser.fork)
            except SamplingError:  # a fork found no token in a text that need never come to be
                drafted = Proposal()
            self._draft_seconds = self._clock() - before
            usable = Proposal(tuple(self._usable(drafted.tokens)), drafted.grade)
            self._drafted = len(usable.tokens)
            kept = max(self.policy.keep(usable, self._rows), 0) if usable.tokens else 0
            self._proposal = Proposal(usable.tokens[:kept], usable.grade)

    def verify(self) -> None:
        """Evaluate the pending token and the proposed ones in one call of the target."""
        self._move({State.PROPOSED}, State.VERIFIED)
        before = self._clock()
        self._logits_QV = self.target.verify([self.pending, *self._proposal.tokens])
        self._verify_seconds = self._clock() - before

    def commit(self) -> Verdict:
        """Make visible what serial decoding shows: accepted proposals and the target's own token behind them."""
        self._move({State.VERIFIED}, State.COMMITTED)
        self._verdict = judge(self._proposal.tokens, self._logits_QV, self._chooser, self._watch)
        self.output.extend(self._verdict.tokens)
        return self._verdict

    def reconcile(self) -> Round | None:
        """Take rejected rows out of the KV cache, tell the drafter, count. The round; None for prefill."""
        self._move({State.COMMITTED}, State.PENDING)
        verdict, first = self._verdict, len(self.output) == len(self._verdict.tokens)
        if verdict.stop is not None:
            self.stop_reason = verdict.stop
        elif len(self.output) >= self.limit:
            self.stop_reason = self.limit_reason
        if self.stop_reason is not None:
            self._move({State.PENDING}, State.STOPPED)
        # One row a shown token: the pending one and all but the last, which is pending now.
        self.target.rollback(self._rows + (0 if first else len(verdict.tokens)))
        self.drafter.extend(verdict.tokens)
        round_ = None if first else self._observed(verdict)
        self.check()
        return round_

    def cancel(self) -> None:
        """End the request where it is."""
        self._move({State.PENDING}, State.STOPPED)
        self.stop_reason = "cancelled"

    def check(self) -> None:
        """Raises AssertionError where cache, visible tokens and counters contradict each other: a broken engine."""
        wanted = self.trace.prompt_tokens + len(self.output) - 1
        if self.target.length != wanted:
            raise AssertionError(f"the KV cache holds {self.target.length} rows where {wanted} tokens are consumed")
        self.trace.check(len(self.output))

    def _usable(self, tokens: Sequence[int]) -> list[int]:
        """No more than was asked for, and none from the first on that the target does not know."""
        usable: list[int] = []
        for token in tokens[: self._asked]:
            if not 0 <= token < self.target.vocab_size:
                break
            usable.append(token)
        return usable

    def _observed(self, verdict: Verdict) -> Round:
        proposed, trace = len(self._proposal.tokens), self.trace
        trace.rounds += 1
        trace.plain_rounds += not proposed
        trace.speculative_rounds += proposed > 0
        trace.rows += 1 + proposed
        trace.rows_committed += len(verdict.tokens)
        trace.rows_rolled_back += 1 + proposed - len(verdict.tokens)
        trace.drafted += self._drafted
        trace.withheld += self._drafted - proposed
        trace.proposed += proposed
        trace.accepted += verdict.accepted
        trace.rejected += verdict.rejected
        trace.discarded += verdict.discarded
        trace.corrections += verdict.is_correction
        trace.bonuses += verdict.is_bonus
        trace.stops_inside += not (verdict.is_correction or verdict.is_bonus)
        round_ = Round(
            rows=self._rows,
            asked=self._asked,
            drafted=self._drafted,
            proposed=proposed,
            accepted=verdict.accepted,
            grade=self._proposal.grade,
            tokens=verdict.tokens,
            draft_seconds=self._draft_seconds,
            verify_seconds=self._verify_seconds,
        )
        self.policy.observe(round_)
        return round_

    def _move(self, before: set[State], after: State) -> None:
        if self.state not in before:
            raise AssertionError(f"a transaction in state {self.state.value} can't become {after.value}")
        self.state = after
