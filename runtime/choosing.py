"""Who picks a position's token from its logits: greedy here, sampling and processors in runtime/sampling/.

A chooser's state is that of the logical prefix: the prompt and every token it was advanced over, in order. The engine
advances it over visible tokens only, so it never sees a rejected position, and nothing in it has to be rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from qbpass.runtime.target import largest


class Chooser(Protocol):
    """One request's choices, one position after another."""

    def choose(self, logits_V: np.ndarray) -> int:
        """The token of the next position. Changes no state and not `logits_V`, which is valid during the call only.

        logits_V: (vocabulary,) float. Asked twice at one position, the answer is the same.
        Raises BadLogits where the logits are not numbers.
        """

    def advance(self, token: int) -> None:
        """`token` is now the last of the prefix."""

    def fork(self) -> Chooser:
        """A chooser of its own at the same position: for drafters that propose what the target would choose."""


class Choosing(Protocol):
    """The rule of a request's choices, the same for every request that has it."""

    def begin(self, prompt: Sequence[int], vocab_size: int) -> Chooser:
        """A new request: the chooser of the position behind the prompt."""


class Greedy:
    """The first index of the largest logit. It has no state: the rule is its own chooser."""

    def begin(self, prompt: Sequence[int], vocab_size: int) -> Greedy:
        del prompt, vocab_size
        return self

    def choose(self, logits_V: np.ndarray) -> int:
        return largest(logits_V)

    def advance(self, token: int) -> None:
        del token

    def fork(self) -> Greedy:
        return self


GREEDY = Greedy()
