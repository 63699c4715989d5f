"""A target with full rows of logits, drafters that look ahead, a stateful processor, and the claim they are here for:
speculation changes no output.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from fake_target import FakeTarget
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from qbpass.runtime.choosing import Chooser, Choosing
from qbpass.runtime.drafter import Drafter, NoDrafter, Proposal
from qbpass.runtime.endpoint import Endpoint
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.sampling.grammar import Vocabulary
from qbpass.runtime.stops import Stops

VOCABULARY, STOP = 31, 30
BYTES, END = 257, 256  # of a byte tokenizer


def logits_behind(tokens: Sequence[int], vocabulary: int = VOCABULARY) -> np.ndarray:
    """(vocabulary,) float32, a function of the whole sequence, as a decoder's is."""
    seed = zlib.crc32(np.asarray(tokens, np.int64).tobytes())
    return np.random.default_rng(seed).normal(0, 2, vocabulary).astype(np.float32)


class LogitsTarget(FakeTarget):
    """Of `logits_behind`."""

    def __init__(self, vocabulary: int = VOCABULARY, max_queries: int = 4):
        super().__init__(lambda tokens: 0, vocabulary, max_queries=max_queries)

    def _rows(self, tokens: Sequence[int]) -> np.ndarray:
        rows = []
        for token in tokens:
            self.kv.append(token)
            rows.append(logits_behind(self.kv, self.vocab_size))
        return np.stack(rows)


class Foresight:
    """Proposes what the target will choose, by a fork of its chooser on its logits, and is wrong now and then."""

    def __init__(self, seed: int = 0, vocabulary: int = VOCABULARY, wrong: float = 0.3):
        self.random, self.wrong, self.vocabulary = random.Random(seed), wrong, vocabulary

    def start(self, tokens: Sequence[int], rows: int) -> None:
        del rows
        self.seen = list(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        self.seen.extend(tokens)

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        chooser, future, proposed = fork(), list(self.seen), []
        for _ in range(limit):
            token = chooser.choose(logits_behind(future, self.vocabulary))
            proposed.append((token + (self.random.random() < self.wrong)) % self.vocabulary)
            if token == self.vocabulary - 1:  # nothing follows a stop: what is proposed behind it is wrong
                proposed += [self.random.randrange(self.vocabulary) for _ in range(limit)]
                break
            chooser.advance(token)
            future.append(token)
        return Proposal(tuple(proposed[:limit]))


State = tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class Watermark:
    """A green list drawn anew for every position, from the last tokens and from how often green was chosen so far, so
    that what was chosen once is felt at every later position.

    Source: Kirchenbauer et al., A Watermark for Large Language Models (2023), with that counter added.
    """

    vocabulary: int = VOCABULARY
    bias: float = 2.0
    width: int = 2

    def begin(self, prompt: Sequence[int]) -> State:
        return 0, tuple(prompt[-self.width :])

    def green(self, state: State) -> np.ndarray:
        return np.random.default_rng(zlib.crc32(repr(state).encode())).random(self.vocabulary) < 0.4

    def apply(self, prefix: np.ndarray, state: State, scores_V: np.ndarray) -> np.ndarray:
        return np.where(self.green(state), scores_V + np.float32(self.bias), scores_V)

    def advance(self, state: State, token: int) -> State:
        return state[0] + int(self.green(state)[token]), (*state[1], token)[-self.width :]

    def from_the_start(self, prompt: int) -> Callable[[Sequence[int], np.ndarray], np.ndarray]:
        """The same of all tokens so far, with nothing kept: what plain_sampling calls a change."""

        def change(tokens: Sequence[int], scores: np.ndarray) -> np.ndarray:
            state = self.begin(tokens[:prompt])
            for token in tokens[prompt:]:
                state = self.advance(state, token)
            return self.apply(np.array(tokens), state, scores)

        return change


class NoRepeats:
    """Bans every token that followed the last one before. It has no state: the prefix says it all."""

    def begin(self, prompt: Sequence[int]) -> None:
        del prompt

    def apply(self, prefix: np.ndarray, state: None, scores_V: np.ndarray) -> np.ndarray:
        scores_V[prefix[1:][prefix[:-1] == prefix[-1]]] = -np.inf
        return scores_V

    def advance(self, state: None, token: int) -> None:
        del token


def byte_vocabulary() -> Vocabulary:
    """One token a byte, ids 0 to 255, and </s>, END."""
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>"])
    return Vocabulary.of(str(tokenizer.to_str()), BYTES, {END})


def generated(
    choosing: Choosing,
    prompt: Sequence[int],
    drafter: Drafter | None = None,
    *,
    limit: int = 24,
    vocabulary: int = VOCABULARY,
    stops: Stops | None = None,
) -> Endpoint:
    stops = stops or Stops(frozenset({vocabulary - 1}))
    request = Request(tuple(prompt), limit, k=3, choosing=choosing, stops=stops)
    return Engine(LogitsTarget(vocabulary), drafter).generate(request)[0]


def prompts(count: int, vocabulary: int = VOCABULARY) -> Iterator[tuple[int, ...]]:
    draw = random.Random(0)
    for _ in range(count):
        yield tuple(draw.randrange(vocabulary - 1) for _ in range(draw.randint(1, 9)))


def assert_speculation_changes_nothing(
    mechanism: str, choosing: Callable[[int], Choosing], *, vocabulary: int = VOCABULARY, stops: Stops | None = None
) -> None:
    """Requests of twenty prompts, each with a seed of its own, with proposals and without.

    mechanism: what is on trial, named where an output differs.
    """
    for seed, prompt in enumerate(prompts(20, vocabulary)):
        off, on = (
            generated(choosing(seed), prompt, drafter, vocabulary=vocabulary, stops=stops)
            for drafter in (NoDrafter(), Foresight(seed, vocabulary))
        )
        assert on == off, f"{mechanism}: speculation changed the output of request {seed}: {on} instead of {off}"
