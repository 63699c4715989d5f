"""How a request's tokens are chosen: the settings that APIs of language models have, checked where they are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qbpass.runtime.choosing import GREEDY, Chooser
from qbpass.runtime.sampling.errors import SamplingError
from qbpass.runtime.sampling.noise import MAX_SEED
from qbpass.runtime.sampling.processor import Processor

if TYPE_CHECKING:
    from typing import Any

MAX_BIASES = 1024


@dataclass(frozen=True)
class Sampling:
    """A `Choosing`. Raises SamplingError for a value outside its range.

    temperature: 0 is greedy: the largest score, of equal ones the lowest id. top_k: 0 is off. top_p, min_p: shares.
    repetition_penalty: for tokens of prompt and output. presence_penalty, frequency_penalty: for generated ones alone.
    bias: added to the scores of token ids; -inf bans. min_tokens: so many generated tokens before one of `stop_ids`.
    seed: of the noise, 64 bits. processors: applied in order. grammar: a Constraint (grammar.py), or any processor.

    The order of steps: bias, repetition penalty, frequency and presence penalties, processors, min_tokens, grammar,
    temperature, top_k, top_p, min_p, draw. It is transformers' (GenerationMixin._get_logits_processor), but for bans,
    which come behind the processors, so that none of them can lift one; vLLM's differs in min_p, which comes before
    top_k there.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()
    seed: int = 0
    processors: tuple[Processor, ...] = ()
    grammar: Processor | None = None

    def __post_init__(self) -> None:
        _check(self.temperature, "temperature", 0, math.inf, "0 (greedy) or more")
        _check_whole(self.top_k, "top_k", 2**31 - 1, "0 (off) or more")
        _check(self.top_p, "top_p", 0, 1, "above 0, at most 1 (off)", above=True)
        _check(self.min_p, "min_p", 0, 1, "0 (off) to 1")
        _check(self.repetition_penalty, "repetition_penalty", 0.01, 100, "0.01 to 100 (1 is off)")
        _check(self.presence_penalty, "presence_penalty", -2, 2, "-2 to 2 (0 is off)")
        _check(self.frequency_penalty, "frequency_penalty", -2, 2, "-2 to 2 (0 is off)")
        _check_whole(self.min_tokens, "min_tokens", 2**31 - 1, "0 (off) or more")
        _check_whole(self.seed, "seed", MAX_SEED, f"0 to {MAX_SEED}")
        if len(self.bias) > MAX_BIASES:
            raise SamplingError(f"{len(self.bias)} biases: give at most {MAX_BIASES}")
        for token, value in self.bias.items():
            _check_whole(token, "a token id of bias", 2**31 - 1, "0 or more")
            if value != -math.inf:
                _check(value, f"bias of token {token}", -1e6, 1e6, "-1e6 to 1e6, or -inf")

    @property
    def is_plain(self) -> bool:
        """Greedy, and nothing changes a score."""
        return (
            self.temperature == 0
            and self.repetition_penalty == 1
            and self.presence_penalty == self.frequency_penalty == 0
            and self.min_tokens == 0
            and not self.bias
            and not self.processors
            and self.grammar is None
        )

    def begin(self, prompt: Sequence[int], vocab_size: int) -> Chooser:
        """The chooser of the position behind `prompt`. Raises SamplingError for a bias outside the vocabulary."""
        from qbpass.runtime.sampling.chooser import SamplingChooser

        outside = next((token for token in self.bias if token >= vocab_size), None)
        if outside is not None:
            raise SamplingError(f"token id {outside} of bias is outside the vocabulary of {vocab_size}")
        return GREEDY if self.is_plain else SamplingChooser.begin(self, prompt, vocab_size)


def _check(value: Any, name: str, low: float, high: float, said: str, *, above: bool = False) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not low <= value <= high or (above and value == low):
        raise SamplingError(f"{name} is {_shown(value)}: give {said}")


def _check_whole(value: Any, name: str, high: int, said: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= high:
        raise SamplingError(f"{name} is {_shown(value)}: give a whole number, {said}")


def _shown(value: Any) -> str:
    return repr(value)[:40] if isinstance(value, int | float | str) else f"a {type(value).__name__}"
