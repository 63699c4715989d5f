"""One request's choices under `Sampling`: scores, then what may be drawn, then the draw."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from qbpass.runtime.sampling.errors import SamplingError
from qbpass.runtime.sampling.filters import above_min_p, at_least_kth, nucleus
from qbpass.runtime.sampling.noise import race, uniform_V
from qbpass.runtime.sampling.penalties import TokenCounts
from qbpass.runtime.sampling.prefix import Prefix
from qbpass.runtime.sampling.processor import applied
from qbpass.runtime.sampling.scratch import scratch
from qbpass.runtime.target import BadLogits

if TYPE_CHECKING:
    from qbpass.runtime.sampling.settings import Sampling


class SamplingChooser:
    """At one position of a request. Everything in it is a function of the logical prefix and the settings."""

    def __init__(
        self,
        settings: Sampling,
        vocab_size: int,
        prompt_tokens: int,
        prefix: Prefix,
        counts: TokenCounts,
        states: list[Any],
    ):
        """states: of the settings' processors, and of the grammar behind them."""
        self._settings, self._vocab_size = settings, vocab_size
        self._prompt_tokens, self._prefix = prompt_tokens, prefix
        self._counts, self._states = counts, states
        grammar = () if settings.grammar is None else (settings.grammar,)
        self._processors = (*settings.processors, *grammar)
        self._bias_ids = np.fromiter(settings.bias, np.int64, len(settings.bias))
        self._bias = np.fromiter(settings.bias.values(), np.float32, len(settings.bias))
        # A model may name an end that its logits have no place for: it is never chosen, and needs no ban.
        self._stops = np.array([token for token in settings.stop_ids if 0 <= token < vocab_size], np.int64)

    @classmethod
    def begin(cls, settings: Sampling, prompt: Sequence[int], vocab_size: int) -> Self:
        """Behind `prompt`. Prompt tokens outside the vocabulary are refused as the engine refuses them."""
        if any(not 0 <= token < vocab_size for token in prompt):
            raise SamplingError(f"the prompt has token ids outside the vocabulary of {vocab_size}")
        made = cls(settings, vocab_size, len(prompt), Prefix(prompt), TokenCounts(prompt), [])
        made._states = [processor.begin(tuple(prompt)) for processor in made._processors]
        return made

    def fork(self) -> Self:
        states = [copy.deepcopy(state) for state in self._states]
        return type(self)(
            self._settings, self._vocab_size, self._prompt_tokens, self._prefix.fork(), self._counts.fork(), states
        )

    def advance(self, token: int) -> None:
        self._prefix.append(token)
        self._counts.add(token)
        self._states = [
            processor.advance(state, token) for processor, state in zip(self._processors, self._states, strict=True)
        ]

    def choose(self, logits_V: np.ndarray) -> int:
        """Raises BadLogits for logits that are not numbers, SamplingError where no token may be chosen."""
        _check(logits_V.max())  # before a processor is blamed
        scores = self._scores(logits_V)
        top = scores.max()
        _check(top)  # a penalty may have made infinity of a very large number
        if top == -np.inf:
            raise SamplingError(
                f"no token is allowed at position {len(self._prefix)}: grammar, bans and min_tokens leave none"
            )
        if self._settings.temperature == 0:
            return int(scores.argmax())
        return self._drawn(scores, float(top))

    def _scores(self, logits_V: np.ndarray) -> np.ndarray:
        """(vocabulary,) float32, of its own memory."""
        settings, prefix = self._settings, self._prefix.tokens
        scores = logits_V.astype(np.float32)
        if settings.bias:
            scores[self._bias_ids] += self._bias
        if settings.repetition_penalty != 1:
            self._counts.penalize_repetition(scores, settings.repetition_penalty)
        if settings.presence_penalty or settings.frequency_penalty:
            self._counts.penalize_generated(scores, settings.presence_penalty, settings.frequency_penalty)
        users = len(settings.processors)
        for processor, state in zip(settings.processors, self._states[:users], strict=True):
            scores = applied(processor, prefix, state, scores)
        if len(prefix) - self._prompt_tokens < settings.min_tokens:
            scores[self._stops] = -np.inf
        if settings.grammar is not None:
            scores = applied(settings.grammar, prefix, self._states[users], scores)
        return scores

    def _drawn(self, scores: np.ndarray, top: float) -> int:
        """The winner of the exponential race among the tokens that the filters leave."""
        settings = self._settings
        ids: np.ndarray | None = None  # None: all of them
        if settings.top_k > 0:
            ids = at_least_kth(scores, settings.top_k)
            scores = scores[ids]
        weights = scratch("weights", len(scores))  # relative to the largest, which is 1
        with np.errstate(over="ignore", under="ignore"):  # a small temperature leaves that one, and zeros
            np.subtract(scores, top, out=weights, dtype=np.float64)
            weights /= settings.temperature
            np.exp(weights, out=weights)
        if settings.top_p < 1:
            kept = nucleus(weights, settings.top_p)
            ids, weights = kept if ids is None else ids[kept], weights[kept]
        if settings.min_p > 0:
            kept = above_min_p(weights, settings.min_p)
            ids, weights = kept if ids is None else ids[kept], weights[kept]
        if len(weights) == 1:
            return 0 if ids is None else int(ids[0])
        uniform = uniform_V(settings.seed, len(self._prefix), self._vocab_size)
        return race(weights, uniform) if ids is None else int(ids[race(weights, uniform[ids])])


def _check(top: np.floating) -> None:
    """top: the largest of all, which is NaN where any is."""
    if not top < np.inf:
        raise BadLogits("the model's logits are not finite numbers: check its weights, or export it in float32")
