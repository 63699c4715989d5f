"""Whatever a drafter proposes, the engine returns what serial decoding returns."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from fake_target import FakeTarget, NextToken, scrambled, serially
from hypothesis import given
from hypothesis import strategies as st

from qbpass.models.errors import PromptError
from qbpass.runtime.choosing import GREEDY, Chooser
from qbpass.runtime.drafter import Drafter, NoDrafter, Proposal
from qbpass.runtime.drafting.ngram import NgramDrafter
from qbpass.runtime.endpoint import Endpoint, first_difference
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.target import BadLogits, greedy

VOCABULARY = 7
NEXT = scrambled(VOCABULARY)


class TestDrafter:
    """Sees every committed token; subclasses propose."""

    __test__ = False

    def __init__(self, next_token: NextToken, seed: int):
        self.next_token, self.random = next_token, random.Random(seed)
        self.seen: list[int] = []

    def start(self, tokens: Sequence[int], rows: int) -> None:
        self.seen = list(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        self.seen.extend(tokens)

    def future(self, count: int) -> list[int]:
        tokens = list(self.seen)
        for _ in range(count):
            tokens.append(self.next_token(tokens))
        return tokens[len(self.seen) :]

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        del fork
        return Proposal(tuple(self.guess(limit)))

    def guess(self, limit: int) -> list[int]:
        raise NotImplementedError


class RandomTokens(TestDrafter):
    def guess(self, limit: int) -> list[int]:
        return [self.random.randrange(VOCABULARY) for _ in range(self.random.randint(0, limit))]


class Oracle(TestDrafter):
    def guess(self, limit: int) -> list[int]:
        return self.future(limit)


class AlwaysWrong(TestDrafter):
    def guess(self, limit: int) -> list[int]:
        return [(token + 1) % VOCABULARY for token in self.future(limit)]


class WrongAtRandom(TestDrafter):
    def guess(self, limit: int) -> list[int]:
        return [(t + (self.random.random() < 0.3)) % VOCABULARY for t in self.future(limit)]


class ProposesTooMuch(TestDrafter):
    """Does not keep to the limit: the engine may not feed more rows than it asked for."""

    def guess(self, limit: int) -> list[int]:
        return self.future(limit + 3)


class Lookup(TestDrafter):
    def guess(self, limit: int) -> list[int]:
        drafter = NgramDrafter()
        drafter.start(self.seen, len(self.seen))
        return list(drafter.propose(limit, GREEDY.fork).tokens)


DRAFTERS = (RandomTokens, Oracle, AlwaysWrong, WrongAtRandom, ProposesTooMuch, Lookup)


@given(
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6).map(tuple),
    limit=st.integers(1, 24),
    stop_ids=st.frozensets(st.integers(0, VOCABULARY - 1), max_size=2),
    k=st.integers(1, 6),
    max_queries=st.integers(1, 6),
    spare=st.none() | st.integers(1, 12),
    make=st.sampled_from(DRAFTERS),
    seed=st.integers(0, 2**16),
)
def test_any_drafter_gives_the_serial_output(
    prompt: tuple[int, ...],
    limit: int,
    stop_ids: frozenset[int],
    k: int,
    max_queries: int,
    spare: int | None,
    make: Callable[[NextToken, int], TestDrafter],
    seed: int,
) -> None:
    context = None if spare is None else len(prompt) + spare
    target = FakeTarget(NEXT, VOCABULARY, max_queries=max_queries, context_length=context)
    drafter, shown = make(NEXT, seed), []
    endpoint, trace = Engine(target, drafter).generate(Request(prompt, limit, stop_ids, k), shown.extend)
    allowed = limit if spare is None else min(limit, spare)
    wanted = serially(NEXT, prompt, allowed, stop_ids)
    assert endpoint.token_ids == wanted == tuple(shown)
    assert endpoint.end_of_generation == (wanted[-1] in stop_ids)
    reached = "max_new_tokens" if spare is None or limit <= spare else "context_length"
    assert endpoint.stop_reason == ("end_of_generation" if endpoint.end_of_generation else reached)
    # Every committed token but the last was consumed, once, where it stands.
    kept = [*prompt, *wanted[:-1]]
    assert target.kv == kept
    trace.check(len(wanted))
    assert trace.rows == len(target.fed)
    assert trace.prompt_tokens == len(prompt)
    if make is Oracle and k > 1 and max_queries > 1:
        assert trace.rejected == 0


@given(limit=st.integers(1, 24), seed=st.integers(0, 2**16))
def test_the_drafter_has_seen_every_visible_token_whenever_it_is_asked(limit: int, seed: int) -> None:
    shown: list[int] = []
    asked: list[tuple[list[int], list[int]]] = []

    class Watching(WrongAtRandom):
        def guess(self, room: int) -> list[int]:
            asked.append((list(self.seen), [2, 3, *shown]))
            return super().guess(room)

    Engine(FakeTarget(NEXT, VOCABULARY), Watching(NEXT, seed)).generate(Request((2, 3), limit), shown.extend)
    assert len(asked) > 0 or limit <= 2
    assert all(seen == visible for seen, visible in asked)


def test_the_pending_token_is_consumed_exactly_once() -> None:
    target = FakeTarget(NEXT, VOCABULARY)
    endpoint, _ = Engine(target, AlwaysWrong(NEXT, 0)).generate(Request((1, 2, 3), 12))
    right = [(position, token) for position, token in enumerate(endpoint.token_ids[:-1], 3)]
    assert [fed for fed in target.fed if fed in set(right)] == right


@pytest.mark.parametrize("drafter", [NoDrafter(), AlwaysWrong(NEXT, 0)])
def test_serial_decoding_feeds_one_row_a_round(drafter: Drafter) -> None:
    target = FakeTarget(NEXT, VOCABULARY, max_queries=1)
    endpoint, trace = Engine(target, drafter).generate(Request((1,), 9))
    assert endpoint.length == 9
    assert trace.rounds == trace.rows == 8
    assert trace.proposed == 0


def test_a_stop_inside_accepted_tokens_hides_what_lies_behind_it() -> None:
    output = serially(NEXT, (1,), 8, frozenset())
    stop = next(token for index, token in enumerate(output) if index in (1, 2) and token not in output[:index])
    cut = output.index(stop) + 1
    endpoint, trace = Engine(FakeTarget(NEXT, VOCABULARY), Oracle(NEXT, 0)).generate(
        Request((1,), 8, frozenset({stop}))
    )
    assert endpoint == Endpoint(output[:cut], True, "end_of_generation")
    assert (trace.accepted, trace.discarded, trace.stops_inside) == (cut - 1, 4 - cut, 1)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(()), "the prompt is empty"),
        (Request((1,), 0), "--max-new-tokens must be at least 1"),
        (Request((1, VOCABULARY)), "token id 7 is outside the vocabulary of 7"),
        (Request((1, -1)), "token id -1 is outside the vocabulary"),
        (Request((1,) * 10), "the prompt has 10 tokens, the model's context 10"),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused_before_the_target_is_touched(request_: Request, message: str) -> None:
    target = FakeTarget(NEXT, VOCABULARY, context_length=10)
    target.kv = [5]
    with pytest.raises(PromptError, match=message) as raised:
        Engine(target).generate(request_)
    assert "\n" not in str(raised.value)
    assert target.kv == [5]


def test_the_context_ends_a_request() -> None:
    target = FakeTarget(NEXT, VOCABULARY, context_length=10)
    endpoint, _ = Engine(target, Oracle(NEXT, 0)).generate(Request((1,) * 7, 50))
    assert endpoint.length == 3
    assert endpoint.stop_reason == "context_length"


class NaNLogits(FakeTarget):
    """Numbers at first, then NaN in one place of the last row."""

    def _rows(self, tokens: Sequence[int]) -> np.ndarray:
        logits = super()._rows(tokens)
        if len(self.kv) >= 4:
            logits[-1, 3] = np.nan
        return logits


@pytest.mark.parametrize("prompt", [(1, 2), (1, 2, 3, 4)])
def test_logits_that_are_not_numbers_end_the_request_with_one_line(prompt: tuple[int, ...]) -> None:
    with pytest.raises(BadLogits, match="not numbers") as raised:
        Engine(NaNLogits(NEXT, VOCABULARY)).generate(Request(prompt, 9))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_of_equal_logits_the_first_is_chosen(dtype: Any) -> None:
    assert greedy(np.array([[0, 2, 2], [5, 5, 5], [-np.inf, -np.inf, 0]], dtype)) == [1, 0, 2]


@pytest.mark.parametrize(
    ("reference", "other", "index"),
    [((1, 2), (1, 2), None), ((1, 2), (1, 3), 1), ((1, 2), (1,), 1), ((), (4,), 0), ((), (), None)],
)
def test_the_first_difference_of_two_outputs(
    reference: tuple[int, ...], other: tuple[int, ...], index: int | None
) -> None:
    assert first_difference(reference, other) == index
