"""Rules of a user's own that change a position's scores before its token is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from qbpass.runtime.sampling.errors import ProcessorError


class Processor(Protocol):
    """Three functions without side effects. Whatever they remember from one position to the next is the state, a value
    that they never change but replace.

    They see the logical prefix of a position: the prompt and the visible tokens, never a proposal that may be rejected.
    A state is kept to stand still, copied (copy.deepcopy) where a drafter looks ahead, and dropped where that is over.
    """

    def begin(self, prompt: Sequence[int]) -> Any:
        """The state behind a prompt."""

    def apply(self, prefix: np.ndarray, state: Any, scores_V: np.ndarray) -> np.ndarray:
        """New scores of the position behind `prefix`, (n,) int64 and read-only.

        scores_V: (vocabulary,) float32, the processor's own copy. What comes back has the same shape and a float type;
        -inf bans a token.
        """

    def advance(self, state: Any, token: int) -> Any:
        """The state behind one more token."""


def applied(processor: Processor, prefix: np.ndarray, state: Any, scores_V: np.ndarray) -> np.ndarray:
    """(vocabulary,) float32. Raises ProcessorError where what comes back is not that of a position's scores."""
    scores = processor.apply(prefix, state, scores_V)
    name = type(processor).__name__
    if not isinstance(scores, np.ndarray) or scores.shape != scores_V.shape or scores.dtype.kind != "f":
        got = f"{scores.dtype} {scores.shape}" if isinstance(scores, np.ndarray) else type(scores).__name__
        raise ProcessorError(
            f"processor {name} returned {got}, not floats of shape {scores_V.shape}: return the scores"
        )
    if not scores.max() < np.inf:
        raise ProcessorError(f"processor {name} returned NaN or inf at position {len(prefix)}: return numbers or -inf")
    return scores.astype(np.float32, copy=False)
