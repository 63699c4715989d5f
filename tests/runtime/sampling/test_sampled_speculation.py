"""With speculation and without, the same tokens: under every setting, processor and grammar. And engines that are wrong
in one mechanism each are caught by that same claim.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from sampled_requests import (
    BYTES,
    STOP,
    VOCABULARY,
    Foresight,
    LogitsTarget,
    NoRepeats,
    Watermark,
    assert_speculation_changes_nothing,
    byte_vocabulary,
    generated,
    prompts,
)

from qbpass.runtime import transaction
from qbpass.runtime.choosing import Chooser
from qbpass.runtime.drafter import Proposal
from qbpass.runtime.endpoint import StopReason
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.sampling import chooser as chooser_module
from qbpass.runtime.sampling.grammar import Grammar, compiled
from qbpass.runtime.sampling.settings import Sampling
from qbpass.runtime.stops import Stops, StopWatch
from qbpass.runtime.verification import Verdict, judge

STOPS = frozenset({STOP})
EVERYTHING: dict[str, Any] = {
    "temperature": 0.9,
    "top_k": 20,
    "top_p": 0.95,
    "min_p": 0.02,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
    "bias": {STOP: 2.0, 3: -1.0},
    "min_tokens": 5,
    "stop_ids": STOPS,
}
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 1.2},
    "repetition penalty": {"temperature": 0.0, "repetition_penalty": 1.5},
    "presence penalty": {"temperature": 0.0, "presence_penalty": 1.5},
    "frequency penalty": {"temperature": 0.7, "frequency_penalty": 1.1},
    "min_tokens": {"temperature": 0.8, "bias": {STOP: 4.0}, "min_tokens": 7, "stop_ids": STOPS},
    "bias": {"temperature": 0.8, "bias": {2: 3.0, 5: -np.inf, STOP: 1.0}},
    "a processor of the prefix": {"temperature": 0.0, "processors": (NoRepeats(),)},
    "a stateful watermark": {"temperature": 0.0, "processors": (Watermark(),)},
    "two processors, drawn": {"temperature": 1.1, "processors": (Watermark(), NoRepeats())},
    "everything": EVERYTHING | {"processors": (Watermark(),)},
}


def choosing(case: str) -> Callable[[int], Sampling]:
    return lambda seed: Sampling(**CASES[case], seed=seed)


@pytest.mark.parametrize("case", CASES)
def test_speculation_changes_no_sampled_output(case: str) -> None:
    assert_speculation_changes_nothing(case, choosing(case))


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_speculation_changes_no_output_under_a_grammar(temperature: float) -> None:
    pytest.importorskip("llguidance")
    schema = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
    constraint = compiled(Grammar("json_schema", schema), byte_vocabulary())
    assert_speculation_changes_nothing(
        "grammar", lambda seed: Sampling(temperature, seed=seed, grammar=constraint), vocabulary=BYTES
    )


def test_what_is_tried_accepts_rejects_and_stops_inside_blocks() -> None:
    """Or the claims above would hold of engines that never speculate."""
    totals: dict[str, int] = {}
    for case in ("everything", "min_tokens", "a stateful watermark"):
        for seed, prompt in enumerate(prompts(20)):
            request = Request(prompt, 24, STOPS, choosing=Sampling(**CASES[case], seed=seed))
            trace = Engine(LogitsTarget(), Foresight(seed)).generate(request)[1]
            for name in ("accepted", "rejected", "discarded", "bonuses", "stops_inside"):
                totals[name] = totals.get(name, 0) + getattr(trace, name)
    assert min(totals.values()) > 5, totals


# Engines that are wrong in one mechanism each.


def fed_the_evaluation_buffer(
    proposal: Sequence[int], logits_QV: np.ndarray, chooser: Chooser, watch: StopWatch
) -> Verdict:
    """Every row's processors see all tokens that were evaluated: the proposed ones behind the row, too."""
    evaluated = chooser.fork()
    for token in proposal:
        evaluated.advance(token)

    class SeesTheBuffer:
        def choose(self, row: np.ndarray) -> int:
            return evaluated.choose(row)

        def advance(self, token: int) -> None:
            chooser.advance(token)

        def fork(self) -> Chooser:
            return chooser.fork()

    return judge(proposal, logits_QV, SeesTheBuffer(), watch)


def state_not_rolled_back(proposal: Sequence[int], logits_QV: np.ndarray, chooser: Any, watch: StopWatch) -> Verdict:
    """Processors keep the state they have behind rejected tokens."""
    verdict = judge(proposal, logits_QV, chooser, watch)
    for token in proposal[len(verdict.tokens) :]:
        chooser._states = [p.advance(s, token) for p, s in zip(chooser._processors, chooser._states, strict=True)]
    return verdict


class StopsAtTheEnd:
    """Remembers why a request should have ended, and lets the block go on."""

    def __init__(self, watch: StopWatch):
        self.watch = watch
        self.reason: StopReason | None = None

    def push(self, token: int) -> StopReason | None:
        self.reason = self.reason or self.watch.push(token)
        return None


def stop_checked_per_block(
    proposal: Sequence[int], logits_QV: np.ndarray, chooser: Chooser, watch: StopWatch
) -> Verdict:
    late: Any = StopsAtTheEnd(watch)
    return dataclasses.replace(judge(proposal, logits_QV, chooser, late), stop=late.reason)


def every_row_chosen(proposal: Sequence[int], logits_QV: np.ndarray, chooser: Chooser, watch: StopWatch) -> Verdict:
    """All rows of a call are chosen from before any is judged, as an engine does that samples a call at once."""
    ahead, choices = chooser.fork(), []
    for row, token in zip(logits_QV, [*proposal, 0], strict=True):
        choices.append(ahead.choose(row))
        ahead.advance(token)
    given: Iterator[int] = iter(choices)

    class Chosen:
        def choose(self, row: np.ndarray) -> int:
            return next(given)

        def advance(self, token: int) -> None:
            chooser.advance(token)

        def fork(self) -> Chooser:
            return chooser.fork()

    return judge(proposal, logits_QV, Chosen(), watch)


def drawn_in_turn() -> Callable[[int, int, int], np.ndarray]:
    """A request's generator, as most samplers have one: a number belongs to the call that asked for it, not to the
    position it is for.
    """
    generators: dict[int, np.random.Generator] = {}

    def uniform(seed: int, position: int, count: int) -> np.ndarray:
        return generators.setdefault(seed, np.random.default_rng(seed)).random(count)

    return uniform


@pytest.mark.parametrize("case", ["a processor of the prefix", "two processors, drawn"])
def test_a_processor_fed_the_evaluation_buffer_is_caught(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "judge", fed_the_evaluation_buffer)
    with pytest.raises(AssertionError, match="processor fed the evaluation buffer: speculation changed the output"):
        assert_speculation_changes_nothing("processor fed the evaluation buffer", choosing(case))


def test_a_processors_state_that_is_not_rolled_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "judge", state_not_rolled_back)
    with pytest.raises(AssertionError, match="state not rolled back: speculation changed the output"):
        assert_speculation_changes_nothing("state not rolled back", choosing("a stateful watermark"))
    # It is the state: a processor without one is served rightly even so.
    assert_speculation_changes_nothing("no state", choosing("a processor of the prefix"))


@pytest.mark.parametrize("by_text", [False, True])
def test_stops_that_are_checked_once_a_block_are_caught(by_text: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stops = Stops(STOPS)
    if by_text:
        stops = Stops(strings=("c ", "e "), decode=lambda ids: " ".join(chr(97 + token) for token in ids))
    case = "temperature" if by_text else "bias"
    assert_speculation_changes_nothing("stop checked per token", choosing(case), stops=stops)
    monkeypatch.setattr(transaction, "judge", stop_checked_per_block)
    with pytest.raises(AssertionError, match="stop checked per block: speculation changed the output"):
        assert_speculation_changes_nothing("stop checked per block", choosing(case), stops=stops)


def test_random_numbers_that_are_drawn_per_call_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "judge", every_row_chosen)
    # Choosing rows that are then rejected does no harm where numbers belong to positions.
    assert_speculation_changes_nothing("numbers of positions", choosing("temperature"))

    def freshly_drawn(seed: int) -> Sampling:
        monkeypatch.setattr(chooser_module, "uniform_V", drawn_in_turn())  # each request begins its generator anew
        return choosing("temperature")(seed)

    with pytest.raises(AssertionError, match="random numbers drawn per call: speculation changed the output"):
        assert_speculation_changes_nothing("random numbers drawn per call", freshly_drawn)


def test_a_processor_that_writes_into_its_state_is_kept_apart_from_what_drafters_try() -> None:
    class Counting:
        """Breaks the protocol: advance changes the state it is given."""

        def begin(self, prompt: Sequence[int]) -> list[int]:
            return []

        def apply(self, prefix: np.ndarray, state: list[int], scores_V: np.ndarray) -> np.ndarray:
            return scores_V + np.float32(3) * (np.arange(VOCABULARY) % 5 == sum(state) % 5).astype(np.float32)

        def advance(self, state: list[int], token: int) -> list[int]:
            state.append(token)
            return state

    assert_speculation_changes_nothing(
        "a state that is written into", lambda seed: Sampling(0, processors=(Counting(),))
    )


def test_a_drafter_that_chooses_with_a_fork_is_right_as_often_as_it_has_the_targets_logits() -> None:
    request = Request(
        (1, 2), 40, choosing=Sampling(**(EVERYTHING | {"bias": {STOP: -np.inf}}), seed=3, processors=(Watermark(),))
    )
    trace = Engine(LogitsTarget(), Foresight(wrong=0)).generate(request)[1]
    assert trace.acceptance == 1


class GoesAstray(Foresight):
    """Its text leaves what the rule allows: its draft knows other tokens, or none that may come next."""

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        chooser = fork()
        if self.random.random() < 0.3:
            return super().propose(limit, fork)
        chooser.choose(np.full(self.vocabulary, -np.inf, np.float32))
        raise AssertionError("a token was chosen where none is allowed")


def test_a_drafters_text_that_the_rule_does_not_allow_ends_no_request() -> None:
    for seed, prompt in enumerate(prompts(5)):
        settings = Sampling(seed=seed, processors=(Watermark(),))
        assert generated(settings, prompt, GoesAstray(seed)) == generated(settings, prompt)


def test_other_seeds_are_other_outputs_and_the_same_seed_the_same() -> None:
    outputs = [generated(Sampling(seed=seed), (1, 2)) for seed in (*range(8), 0)]
    assert len(set(outputs)) == 8
    assert outputs[0] == outputs[-1]
