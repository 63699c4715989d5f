"""N-gram drafting (prompt lookup): what followed the last time the sequence ended like this.

Source: Saxena, Prompt Lookup Decoding (2023), as in transformers' `prompt_lookup_num_tokens`; here with an index, so
that a proposal costs the same at any length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qbpass.runtime.choosing import Chooser
from qbpass.runtime.drafter import Proposal
from qbpass.runtime.drafting.evidence import LENGTHS, grade_of


class NgramDrafter:
    """Proposes the continuation of the most recent earlier occurrence of the longest matching suffix.

    sizes: suffix lengths tried, longest first. Where the occurrence overlaps the end, the text repeats itself, and the
    proposal goes on as if it did so for ever.
    """

    def __init__(self, sizes: Sequence[int] = (4, 3, 2, 1)):
        if not sizes or min(sizes) < 1:
            raise ValueError("n-gram sizes must be positive")
        self.sizes = tuple(sorted(set(sizes), reverse=True))
        self.start([], 0)

    def start(self, tokens: Sequence[int], rows: int) -> None:
        """A new request with this prompt."""
        del rows
        self._tokens: list[int] = []
        # n-gram -> (index of the token after its latest occurrence, how many in a row were followed by that token)
        self._next: dict[tuple[int, ...], tuple[int, int]] = {}
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Committed tokens, in order."""
        known, after = self._tokens, self._next
        for token in tokens:
            # The n-gram that ends before `token` is indexed now, when it has a continuation: it can't match itself.
            end = len(known)
            for size in self.sizes:
                if end >= size:
                    gram = tuple(known[-size:])
                    before = after.get(gram)
                    same = before is not None and known[before[0]] == token
                    after[gram] = (end, before[1] + 1 if same and before else 1)
            known.append(token)

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        """Up to `limit` tokens, graded by evidence (evidence.py); none where nothing matches."""
        del fork
        known = self._tokens
        if limit < 1:
            return Proposal()
        for size in self.sizes:
            found = self._next.get(tuple(known[-size:])) if len(known) >= size else None
            if found is not None:
                start, agreeing = found
                return Proposal(continued(known, start, limit), grade_of(self._matched(start, size), agreeing))
        return Proposal()

    def _matched(self, start: int, size: int) -> int:
        """How many tokens before `start` are those of the end: at least `size`; counted up to the longest grade."""
        known = self._tokens
        while size < min(start, LENGTHS[-1]) and known[start - 1 - size] == known[-1 - size]:
            size += 1
        return size


def continued(tokens: Sequence[int], start: int, limit: int) -> tuple[int, ...]:
    """`limit` tokens from `start` on; behind the end those of the period that begins at `start`."""
    known = tuple(tokens[start : start + limit])
    return known if len(known) == limit else tuple(known[i % len(known)] for i in range(limit))
