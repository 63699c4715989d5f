"""Penalties on tokens the sequence has already, in float32 as transformers and vLLM compute them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np


class TokenCounts:
    """What a prefix holds: which tokens at all, and how often each generated one.

    The repetition penalty (Keskar et al., CTRL, 2019, as transformers' RepetitionPenaltyLogitsProcessor) is for tokens
    of prompt and output. Presence and frequency penalties, as OpenAI defines them and vLLM computes them, are for
    generated tokens alone: a prompt costs nothing.
    """

    def __init__(self, prompt: Sequence[int]):
        self._seen: dict[int, None] = dict.fromkeys(prompt)
        self._generated: dict[int, int] = {}

    def add(self, token: int) -> None:
        """A generated token."""
        self._seen[token] = None
        self._generated[token] = self._generated.get(token, 0) + 1

    def fork(self) -> Self:
        copy = type(self)(())
        copy._seen, copy._generated = dict(self._seen), dict(self._generated)
        return copy

    def penalize_repetition(self, scores_V: np.ndarray, penalty: float) -> None:
        """In place: positive scores of seen tokens are divided by `penalty`, others multiplied."""
        ids = np.fromiter(self._seen, np.int64, len(self._seen))
        seen = scores_V[ids]
        scores_V[ids] = np.where(seen < 0, seen * np.float32(penalty), seen / np.float32(penalty))

    def penalize_generated(self, scores_V: np.ndarray, presence: float, frequency: float) -> None:
        """In place: `frequency` times its count, then `presence`, off the score of every generated token."""
        ids = np.fromiter(self._generated, np.int64, len(self._generated))
        counts = np.fromiter(self._generated.values(), np.float32, len(self._generated))
        scores_V[ids] -= np.float32(frequency) * counts
        scores_V[ids] -= np.float32(presence)
