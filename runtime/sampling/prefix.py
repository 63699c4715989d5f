"""A growing sequence of tokens that is shown as an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np


class Prefix:
    """The logical prefix of a position: the prompt and every token that is visible, in order."""

    def __init__(self, tokens: Sequence[int] | np.ndarray):
        self._count = len(tokens)
        self._buffer = np.empty(self._count + 256, np.int64)
        self._buffer[: self._count] = tokens

    def __len__(self) -> int:
        return self._count

    @property
    def tokens(self) -> np.ndarray:
        """(length,) int64, read-only. Holds what it holds now after further tokens, too."""
        view = self._buffer[: self._count]
        view.flags.writeable = False
        return view

    def append(self, token: int) -> None:
        if self._count == len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.empty(self._count, np.int64)])
        self._buffer[self._count] = token
        self._count += 1

    def fork(self) -> Self:
        return type(self)(self._buffer[: self._count])
