"""transformers' processors see the logical prefix, keep their state to themselves, or are refused."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from sampled_requests import (
    STOP,
    VOCABULARY,
    Foresight,
    assert_speculation_changes_nothing,
    generated,
    logits_behind,
    prompts,
)

from qbpass.runtime.choosing import Chooser
from qbpass.runtime.drafter import Proposal
from qbpass.runtime.sampling.errors import ProcessorError
from qbpass.runtime.sampling.hf_processor import CALLS_MADE_TWICE, HFProcessor
from qbpass.runtime.sampling.settings import Sampling

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers.generation.logits_process")


class CallCounter:
    """State in an attribute: what is preferred depends on how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.calls += 1
        scores = scores.clone()
        scores[:, self.calls % 5 :: 5] += 3.0
        return scores


class SumOfAll(CallCounter):
    """State that follows from the tokens: a tensor that grows."""

    def __init__(self) -> None:
        self.seen = torch.zeros(0, dtype=torch.int64)

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.seen = torch.cat([self.seen, input_ids[0, -1:]])
        scores[:, int(self.seen.sum()) % 7 :: 7] += 3.0  # written into the tensor it was given, as many do
        return scores


class PrefixTable:
    """Allows what a table, filled as it goes, does not hold: a callable object, as constrained decoding has them."""

    def __init__(self) -> None:
        self.table: dict[tuple[int, ...], list[int]] = {}

    def __call__(self, batch: int, ids: Any) -> list[int]:
        key = tuple(ids[-2:].tolist())
        self.table[key] = [*self.table.get(key, []), len(self.table)]
        return [t for t in range(VOCABULARY) if (t + len(self.table)) % 3]


STATELESS: dict[str, Callable[[int], Any]] = {
    "RepetitionPenalty": lambda prompt: hf.RepetitionPenaltyLogitsProcessor(1.4),
    "NoRepeatNGram": lambda prompt: hf.NoRepeatNGramLogitsProcessor(2),
    "MinNewTokens": lambda prompt: hf.MinNewTokensLengthLogitsProcessor(prompt, 6, STOP),
    "Watermark lefthash": lambda prompt: hf.WatermarkLogitsProcessor(VOCABULARY, "cpu", 0.4),
    "Watermark selfhash": lambda prompt: hf.WatermarkLogitsProcessor(
        64, "cpu", 0.4, seeding_scheme="selfhash", context_width=1
    ),
    "SequenceBias": lambda prompt: hf.SequenceBiasLogitsProcessor([[[3, 4], 2.0], [[5], 1.0]]),
}
STATEFUL: dict[str, Callable[[int], Any]] = {
    "SynthID": lambda prompt: hf.SynthIDTextWatermarkLogitsProcessor(
        ngram_len=3,
        keys=[654, 400, 836],
        sampling_table_size=256,
        sampling_table_seed=0,
        context_history_size=8,
        device=torch.device("cpu"),
    ),
    "PrefixConstrained": lambda prompt: hf.PrefixConstrainedLogitsProcessor(PrefixTable(), num_beams=1),
    "a counter": lambda prompt: CallCounter(),
    "a growing tensor": lambda prompt: SumOfAll(),
    "a list of two": lambda prompt: hf.LogitsProcessorList([CallCounter(), SumOfAll()]),
}


def by_hand(processor: Any, prompt: tuple[int, ...], limit: int, vocabulary: int = VOCABULARY) -> tuple[int, ...]:
    """transformers' own loop: one call a position, in order, on the tokens so far."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + limit and (len(tokens) == len(prompt) or tokens[-1] != vocabulary - 1):
        row = torch.tensor(logits_behind(tokens, vocabulary)[None])
        tokens.append(int(processor(torch.tensor([tokens]), row).argmax()))
    return tuple(tokens[len(prompt) :])


@pytest.mark.parametrize("name", [*STATELESS, *STATEFUL])
def test_the_output_is_that_of_calls_one_a_position_in_order(name: str) -> None:
    make = (STATELESS | STATEFUL)[name]
    vocabulary = 64 if name == "Watermark selfhash" else VOCABULARY
    for number, prompt in enumerate(prompts(4, vocabulary)):
        wanted = by_hand(make(len(prompt)), prompt, 12, vocabulary)
        for drafter in (None, Foresight(number, vocabulary)):
            settings = Sampling(0, processors=(HFProcessor(make(len(prompt))),))
            found = generated(settings, prompt, drafter, limit=12, vocabulary=vocabulary)
            assert found.token_ids == wanted


@pytest.mark.parametrize("name", STATEFUL)
def test_speculation_changes_no_output_of_a_processor_with_hidden_state(name: str) -> None:
    adapted = HFProcessor(STATEFUL[name](1))  # one for all requests: each works on copies of its own
    assert_speculation_changes_nothing(name, lambda seed: Sampling(0.8, seed=seed, processors=(adapted,)))


def test_the_users_own_processor_is_never_called() -> None:
    mine = CallCounter()
    generated(Sampling(0, processors=(HFProcessor(mine),)), (1, 2), Foresight())
    assert mine.calls == 0


class Guesses:
    """Proposes any tokens, with no chooser."""

    def start(self, tokens: Sequence[int], rows: int) -> None:
        self.random = random.Random(rows)

    def extend(self, tokens: Sequence[int]) -> None: ...

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        return Proposal(tuple(self.random.randrange(VOCABULARY) for _ in range(limit)))


class Watching:
    """Copies are itself: every call of a request is seen."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Watching:
        return self

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.seen.append((tuple(input_ids[0].tolist()), input_ids.dtype, len(input_ids), scores.dtype, scores.shape))
        return scores


def test_what_it_is_given_are_tensors_of_the_logical_prefix_and_of_the_scores() -> None:
    watching = Watching()
    settings = Sampling(0, processors=(HFProcessor(watching),))
    output = generated(settings, (1, 2), Guesses(), limit=9).token_ids
    given = {(torch.int64, 1, torch.float32, (1, VOCABULARY))}
    assert [entry[0] for entry in dict.fromkeys(watching.seen)] == [(1, 2, *output[:n]) for n in range(len(output))]
    assert {entry[1:] for entry in watching.seen} == given


def mutates_the_tokens() -> Any:
    class Mutates:
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            input_ids[0, 0] = 0
            return scores

    return Mutates()


def remembers_in_a_closure() -> Any:
    count = 0

    def processor(input_ids: Any, scores: Any) -> Any:
        nonlocal count
        count += 1
        return scores

    return processor


def remembers_in_a_closures_list() -> Any:
    calls: list[int] = []

    def allowed(batch: int, ids: Any) -> list[int]:
        calls.append(len(ids))
        return list(range(VOCABULARY))

    return hf.PrefixConstrainedLogitsProcessor(allowed, num_beams=1)


def remembers_in_its_class() -> Any:
    class Remembers:
        calls = 0

        def __call__(self, input_ids: Any, scores: Any) -> Any:
            type(self).calls += 1
            return scores

    return Remembers()


def remembers_in_a_default() -> Any:
    def processor(input_ids: Any, scores: Any, memory: list[int] = []) -> Any:  # noqa: B006
        memory.append(1)
        return scores

    return processor


def draws_from_the_global_generator() -> Any:
    def processor(input_ids: Any, scores: Any) -> Any:
        return scores + random.random()

    return processor


def returns_none() -> Any:
    return lambda input_ids, scores: None


def returns_one_row_too_many() -> Any:
    return lambda input_ids, scores: torch.cat([scores, scores])


def returns_nan() -> Any:
    return lambda input_ids, scores: scores * float("nan")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (mutates_the_tokens, "processor Mutates changed the tokens it was given"),
        (remembers_in_a_closure, "keeps state in variable count of function's closure"),
        (remembers_in_a_closures_list, "keeps state in variable calls of _prefix_allowed_tokens_fn's closure"),
        (
            lambda: hf.LogitsProcessorList([CallCounter(), remembers_in_a_closures_list()]),
            "LogitsProcessorList keeps state in variable calls of",
        ),
        (remembers_in_its_class, "keeps state in Remembers.calls"),
        (remembers_in_a_default, "keeps state in defaults of function"),
        (draws_from_the_global_generator, "answers two equal calls differently"),
        (returns_none, "returned NoneType, not scores of shape"),
        (returns_one_row_too_many, r"returned \(2, 31\), not scores of shape \(1, 31\)"),
        (returns_nan, "returned NaN or inf at position 2"),
    ],
)
def test_a_processor_that_cannot_be_rolled_back_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ProcessorError, match=message) as raised:
        generated(Sampling(0, processors=(HFProcessor(make()),)), (1, 2))
    assert "\n" not in str(raised.value)


def test_a_processor_that_cannot_be_copied_is_refused_at_once() -> None:
    counter = CallCounter()
    counter.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(ProcessorError, match="processor CallCounter can't be copied"):
        HFProcessor(counter)


def test_only_the_first_calls_of_a_request_are_made_twice() -> None:
    watching = Watching()
    generated(Sampling(0, bias={STOP: -np.inf}, processors=(HFProcessor(watching),)), (1,), limit=10)
    lengths = [len(entry[0]) for entry in watching.seen]
    assert [lengths.count(n) for n in range(1, 11)] == [2] * CALLS_MADE_TWICE + [1] * (10 - CALLS_MADE_TWICE)


def test_the_state_of_a_position_that_was_not_chosen_is_missing() -> None:
    chooser = Sampling(0, processors=(HFProcessor(CallCounter()),)).begin((1,), VOCABULARY)
    with pytest.raises(ProcessorError, match="was not asked about a position"):
        chooser.advance(3)
