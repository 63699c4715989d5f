"""Suffix drafting: the longest suffix that was there before, however long, and what mostly followed it.

Sources: Hu et al., SAM Decoding (2024), for the automaton; Oliaro et al., SuffixDecoding (2024), for its counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qbpass.runtime.choosing import Chooser
from qbpass.runtime.drafter import Proposal
from qbpass.runtime.drafting.evidence import grade_of
from qbpass.runtime.drafting.suffix_automaton import ROOT, SuffixAutomaton


class SuffixDrafter:
    """Proposes, token by token, the most frequent continuation of the longest match over prompt and output; the latest
    of those equally frequent.

    most_tokens: the index covers the latest half of them at least, and never more: memory is bounded.
    """

    def __init__(self, most_tokens: int = 1 << 16):
        if most_tokens < 2:
            raise ValueError("a suffix drafter needs at least two tokens to look at")
        self.most_tokens = most_tokens
        self.start([], 0)

    def start(self, tokens: Sequence[int], rows: int) -> None:
        """A new request with this prompt."""
        del rows
        self._tokens: list[int] = []
        self._seen = SuffixAutomaton()
        self.extend(tokens[-self.most_tokens :])

    def extend(self, tokens: Sequence[int]) -> None:
        """Committed tokens, in order."""
        for token in tokens:
            if len(self._tokens) == self.most_tokens:
                self._forget()
            self._tokens.append(token)
            self._seen.append(token)

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        """Up to `limit` tokens, graded by evidence (evidence.py); none where nothing matches.

        A token costs a look at the distinct continuations of its context.
        """
        del fork
        state, proposal = self._seen.match, list[int]()
        grade = 0
        while len(proposal) < limit and state != ROOT:
            if not self._seen.next[state]:
                # Nothing followed everything read: on with what followed its longest suffix that was there before.
                state = self._seen.link[state]
                continue
            token, ahead = self._likeliest(state)
            if not proposal:
                grade = grade_of(self._seen.length[state], ahead)
            proposal.append(token)
            state = self._seen.next[state][token]
        return Proposal(tuple(proposal), grade)

    def _likeliest(self, state: int) -> tuple[int, int]:
        """The token that followed most often, and by how many times more often than the next one."""
        seen = self._seen
        followers = [(seen.count[after], seen.latest[after], token) for token, after in seen.next[state].items()]
        often, _, token = max(followers)
        second = max((count for count, _, other in followers if other != token), default=0)
        return token, often - second

    def _forget(self) -> None:
        """Index the latest half alone. That is rare enough to cost each token a constant."""
        self._tokens = self._tokens[-(self.most_tokens // 2) :]
        self._seen = SuffixAutomaton(self._seen.depth)
        for token in self._tokens:
            self._seen.append(token)
