"""A target without a model: the next token is a function of everything before it, and every row fed is written down."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np

NextToken = Callable[[Sequence[int]], int]


def scrambled(vocab_size: int) -> NextToken:
    """A next token that depends on the whole sequence, as a decoder's does."""
    return lambda tokens: zlib.crc32(bytes(token % 256 for token in tokens)) % vocab_size


class FakeTarget:
    """kv: the tokens in its cache; fed: every (position, token) of a verification call, in order."""

    def __init__(
        self,
        next_token: NextToken,
        vocab_size: int,
        *,
        max_queries: int = 4,
        context_length: int | None = None,
    ):
        self.next_token, self.vocab_size = next_token, vocab_size
        self.max_queries, self.context_length = max_queries, context_length
        self.kv: list[int] = []
        self.fed: list[tuple[int, int]] = []
        self.capacity = 0

    @property
    def length(self) -> int:
        return len(self.kv)

    def start(self, rows: int) -> None:
        self.kv, self.fed, self.capacity = [], [], rows

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        assert not self.kv
        return self._rows(tokens)[-1:]

    def verify(self, tokens: Sequence[int]) -> np.ndarray:
        assert 1 <= len(tokens) <= self.max_queries
        self.fed += [(len(self.kv) + index, token) for index, token in enumerate(tokens)]
        return self._rows(tokens)

    def rollback(self, length: int) -> None:
        assert length <= len(self.kv)
        del self.kv[length:]

    def _rows(self, tokens: Sequence[int]) -> np.ndarray:
        logits = np.zeros((len(tokens), self.vocab_size), np.float32)
        for row, token in enumerate(tokens):
            self.kv.append(token)
            logits[row, self.next_token(self.kv)] = 1.0
        assert len(self.kv) <= self.capacity
        return logits


def serially(next_token: NextToken, prompt: Sequence[int], limit: int, stop_ids: frozenset[int]) -> tuple[int, ...]:
    """Greedy decoding as its definition says."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < limit:
        tokens.append(next_token(tokens))
        if tokens[-1] in stop_ids:
            break
    return tuple(tokens[len(prompt) :])
