"""N-gram drafting (prompt lookup): what followed the last time the sequence ended like this.

Source: Saxena, Prompt Lookup Decoding (2023), as in transformers' `prompt_lookup_num_tokens`; here with an index, so
that a proposal costs the same at any length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qbpass.runtime.choosing import Chooser
from qbpass.runtime.drafter import Proposal


class NgramDrafter:
    """Proposes the continuation of the most recent earlier occurrence of the longest matching suffix.

    sizes: suffix lengths tried, longest first.
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
        self._next: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token after its latest occurrence
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Committed tokens, in order."""
        for token in tokens:
            # The n-gram that ends before `token` is indexed now, when it has a continuation: it can't match itself.
            for size in self.sizes:
                if len(self._tokens) >= size:
                    self._next[tuple(self._tokens[-size:])] = len(self._tokens)
            self._tokens.append(token)

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        """Up to `limit` tokens, graded by the length of the suffix that was found; none where nothing matches."""
        del fork
        if limit < 1:
            return Proposal()
        for size in self.sizes:
            if len(self._tokens) >= size:
                start = self._next.get(tuple(self._tokens[-size:]))
                if start is not None:
                    return Proposal(tuple(self._tokens[start : start + limit]), size)
        return Proposal()
