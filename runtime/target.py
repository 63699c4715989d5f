"""A target model as the engine sees it: rows in, logits out, and a counter of positions that are committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from qbpass.models.errors import QbpassError


class Target(Protocol):
    """length: rows in the KV cache. Rows of logits are float arrays (rows, vocabulary)."""

    vocab_size: int
    context_length: int | None
    max_queries: int

    @property
    def length(self) -> int: ...

    def start(self, rows: int) -> None:
        """A new request of up to `rows` positions: empty cache, prefill stage."""

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        """Evaluate the prompt as the reference does. Returns the last row of logits, (1, vocabulary)."""

    def verify(self, tokens: Sequence[int]) -> np.ndarray:
        """Evaluate up to max_queries continuation rows.

        Returns (len(tokens), vocabulary), valid until the next call.
        """

    def rollback(self, length: int) -> None:
        """Forget every row from `length` on."""


class BadLogits(QbpassError):
    """The model produced logits that are not numbers."""


def greedy(logits: np.ndarray) -> list[int]:
    """The first index of the largest logit of each row. Raises BadLogits where that is NaN."""
    return [largest(row) for row in logits]


def largest(logits_V: np.ndarray) -> int:
    """The first index of the largest logit of one row. Raises BadLogits where that is NaN."""
    token = int(logits_V.argmax())  # the first NaN where there is one
    if logits_V[token] != logits_V[token]:
        raise BadLogits("the model's logits are not numbers (NaN): check its weights, or export it in float32")
    return token
