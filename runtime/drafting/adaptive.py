"""The policy that never loses: each round drafts as much as pays on this machine with this text, down to nothing.

A round that verifies k tokens commits 1 + a(k) tokens, a(k) of them accepted, in D + C(1 + k) seconds of drafting and
of the target's call. A second is worth as many tokens as the request gives in one (`pace`), and never fewer than serial
decoding would; so the best k is that of the largest 1 + a(k) - pace * (D + C(1 + k)). All four are measured as the
request runs (acceptance.py, draft_costs.py, call_costs.py). What a request has lost is counted (ledger.py): once that
is more than a little, only what pays by a pessimist's rates is verified.

Source: Dinkelbach, On Nonlinear Fractional Programming (1967): a ratio of sums is largest where the difference is.
"""

from __future__ import annotations

from qbpass.runtime.drafter import Proposal
from qbpass.runtime.drafting.acceptance import Acceptance
from qbpass.runtime.drafting.call_costs import CallCosts
from qbpass.runtime.drafting.draft_costs import DraftCosts
from qbpass.runtime.drafting.ledger import Ledger
from qbpass.runtime.policy import Round

#: What may lose more than is left must pay even if each place were rejected so many times more.
MISSES = 2
#: A drafted token that costs less than this share of a call of one row is looked at for nothing.
FREE = 0.01
#: Verifying anything must be worth so many tokens more than verifying nothing: even odds are no reason.
MARGIN = 0.02
#: Where it is in doubt whether verifying pays, a call of one row is run after so many of more.
ROW_AGAIN = 4
#: What a round counts for the request's pace after each further one.
KEPT = 0.97
#: Drafts that cost something and don't pay are tried again after so many rounds, at first and at the most.
FIRST_WAIT, LONGEST_WAIT = 4, 64


class AdaptivePolicy:
    """Of one engine: what it knows of costs and of acceptance outlives a request, and counts less from then on.

    The clock is the transaction's: with the same seconds it decides the same.
    """

    def __init__(self, max_queries: int):
        """max_queries: the most rows of a call of the target."""
        self.costs = CallCosts(max_queries)
        self.acceptance = Acceptance()
        self.drafts = DraftCosts()
        self.ledger = Ledger()
        self._tokens = self._calls = 0.0  # committed of late, and what that took in calls of one row
        self._idle, self._wait = 0, FIRST_WAIT
        self._without_row = 0  # rounds since a call of one row

    def start(self, prompt_tokens: int) -> None:
        del prompt_tokens
        self.acceptance.new_request()
        self.ledger.new_request()
        self._tokens = self._calls = 0.0
        self._idle, self._wait = 0, FIRST_WAIT

    def limit(self, room: int, rows: int) -> int:
        del rows
        if not self.costs.seen:
            return 0  # the first call tells what a second is worth
        row = self.costs.seconds(1)
        if not self.drafts.seen:
            return min(room, 1)
        if self.drafts.dearest < FREE * row:
            return room
        room = min(room, self._reach())
        best = self._best([self._worth_of_asking(k) for k in range(room + 1)])
        if best and self._risk_of_asking(best) > self.ledger.left(row):
            best = self._best([self._worth_of_asking(k, misses=MISSES) for k in range(room + 1)])
        self._idle = 0 if best else self._idle + 1
        if self._idle > self._wait and self.drafts.dearest <= self.ledger.left(row):
            self._idle, self._wait = 0, min(2 * self._wait, LONGEST_WAIT)
            return min(room, 1)
        return best

    def keep(self, proposal: Proposal, rows: int) -> int:
        del rows
        self.acceptance.proposed(proposal.grade, proposal.tokens)
        most = min(len(proposal.tokens), self._reach())
        row, sunk = self.costs.seconds(1), len(proposal.tokens) * self.drafts.token_seconds(proposal.grade)
        worth = self._worth(proposal.grade, most)
        best = self._best(worth)
        missed = 1 - self.acceptance.expected(proposal.grade, 1)[1]
        if missed * (sunk + self.costs.seconds(1 + best) - row) > self.ledger.left(row):
            worth = self._worth(proposal.grade, most, misses=MISSES)
            best = self._best(worth)
        doubt = self.pace * self.costs.seconds(1 + best) * self.costs.doubt(1 + best)
        if best and worth[best] - worth[0] < doubt and self._without_row >= ROW_AGAIN:
            return 0  # a call of one row tells whether it pays
        return best

    def observe(self, round_: Round) -> None:
        self._without_row = self._without_row + 1 if round_.proposed else 0
        self.costs.observe(1 + round_.proposed, round_.rows, round_.verify_seconds)
        if round_.drafted:
            self.drafts.observe(round_.grade, round_.drafted, round_.draft_seconds)
        self.acceptance.visible(round_.tokens)
        # As far as it is known, not as the clock says: what delayed this call would have delayed another as well.
        row, seconds = self.costs.seconds(1), round_.draft_seconds + self.costs.seconds(1 + round_.proposed)
        self.ledger.round(len(round_.tokens), row, seconds)
        self._tokens = KEPT * self._tokens + len(round_.tokens)
        self._calls = KEPT * self._calls + seconds / row
        if round_.accepted:
            self._wait = FIRST_WAIT

    @property
    def pace(self) -> float:
        """Tokens that a second is worth."""
        lately = self._tokens / self._calls if self._calls else 1.0
        return max(lately, 1.0) / self.costs.seconds(1)

    def _reach(self) -> int:
        """The most tokens to verify: twice the rows of any call so far, so that a dear width is met step by step."""
        return min(2 * self.costs.widest_seen, self.costs.widest) - 1

    @staticmethod
    def _best(worth: list[float]) -> int:
        """The number of tokens that is worth most, the smaller one of two."""
        return max(range(len(worth)), key=worth.__getitem__)

    def _worth(self, grade: int, most: int, misses: float = 0.0) -> list[float]:
        """Of verifying 0 to `most` tokens of a proposal that is there, in tokens. misses: acceptance.py."""
        accepted, pace = self.acceptance.expected(grade, most, misses), self.pace
        return [1 + accepted[k] - pace * self.costs.seconds(1 + k) - MARGIN * (k > 0) for k in range(most + 1)]

    def _worth_of_asking(self, k: int, misses: float = 0.0) -> float:
        """Of asking for k tokens, whatever grade they will be, and verifying the best part of them."""
        if k == 0:
            return self._worth(0, 0)[0]
        return sum(
            share * (max(self._worth(grade, k, misses)) - self.pace * k * self.drafts.token_seconds(grade))
            for grade, share in self.drafts.shares().items()
        )

    def _risk_of_asking(self, k: int) -> float:
        """Seconds that asking for k tokens and verifying them may lose, where the first is rejected, times how likely
        that is.
        """
        verifying = self.costs.seconds(1 + k) - self.costs.seconds(1)
        return sum(
            share * (1 - self.acceptance.expected(grade, 1)[1]) * (k * self.drafts.token_seconds(grade) + verifying)
            for grade, share in self.drafts.shares().items()
        )
