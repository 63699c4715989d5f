"""A position's token is what a textbook chooses there, and depends on the prefix, the row and the settings alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampled_requests import STOP, VOCABULARY, Watermark, generated, logits_behind

from qbpass.runtime.choosing import GREEDY
from qbpass.runtime.sampling.errors import ProcessorError, SamplingError
from qbpass.runtime.sampling.settings import Sampling
from qbpass.runtime.target import BadLogits

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from measuring.plain_sampling import plain_choice, plain_loop

TOKENS = st.integers(0, VOCABULARY - 1)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 1.7]),
        "top_k": st.integers(1, 40),
        "top_p": st.floats(0.05, 0.99),
        "min_p": st.floats(0.01, 0.9),
        "repetition_penalty": st.floats(0.5, 2),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "bias": st.dictionaries(TOKENS, st.floats(-9, 9) | st.just(-np.inf), max_size=5),
        "min_tokens": st.integers(0, 9),
        "seed": st.integers(0, 2**64 - 1),
    },
)


@given(
    settings_=SETTINGS,
    prompt=st.lists(TOKENS, min_size=1, max_size=9),
    seed=st.integers(0, 99),
    watermarked=st.booleans(),
)
def test_the_output_is_an_independent_loops(
    settings_: dict[str, Any], prompt: list[int], seed: int, watermarked: bool
) -> None:
    settings_ = {"seed": seed, "stop_ids": frozenset({STOP}), **settings_}
    mark = Watermark()
    changes = (mark.from_the_start(len(prompt)),) if watermarked else ()

    def choice(logits: np.ndarray, prompt: Sequence[int], output: Sequence[int]) -> int:
        return plain_choice(logits, prompt, output, **settings_, changes=changes)

    wanted = plain_loop(logits_behind, prompt, 16, choice, frozenset({STOP}))
    mine = generated(Sampling(**settings_, processors=(mark,) if watermarked else ()), prompt, limit=16)
    assert list(mine.token_ids) == wanted


@pytest.mark.parametrize("settings_", [Sampling(0.9, top_p=0.9, seed=5), Sampling(0, repetition_penalty=1.3)])
def test_choosing_changes_nothing_and_forks_go_their_own_way(settings_: Sampling) -> None:
    chooser = settings_.begin((1, 2), VOCABULARY)
    row = logits_behind((1, 2))
    before = row.tobytes()
    first = chooser.choose(row)
    fork = chooser.fork()
    for token in (4, 4, 9):
        fork.choose(logits_behind((token,)))
        fork.advance(token)
    assert chooser.choose(row) == first == chooser.fork().choose(row)
    assert row.tobytes() == before
    chooser.advance(4)
    again = settings_.begin((1, 2, 4), VOCABULARY)
    assert chooser.choose(row) == again.choose(row)  # position and prefix are the same, however they came about


def test_of_equal_scores_greedy_takes_the_lowest_id() -> None:
    row = np.zeros(6, np.float32)
    assert Sampling(0, bias={3: 1.0, 5: 1.0}).begin((0,), 6).choose(row) == 3


def test_greedy_with_nothing_set_is_the_greedy_chooser_itself() -> None:
    assert Sampling(0, seed=9, top_k=5, stop_ids=frozenset({1})).begin((0,), 4) is GREEDY
    for more in ({"bias": {1: 1.0}}, {"repetition_penalty": 1.1}, {"min_tokens": 1}, {"processors": (Watermark(4),)}):
        assert Sampling(0, **more).begin((0,), 4) is not GREEDY


def test_tokens_are_drawn_as_often_as_their_probabilities_say() -> None:
    row = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))
    tokens = [Sampling(seed=seed).begin((0,), 4).choose(row) for seed in range(20_000)]
    assert np.abs(np.bincount(tokens, minlength=4) / 20_000 - np.exp(row)).max() < 0.015  # sd 0.0035


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_very_small_temperature_is_greedy_and_a_very_large_one_uniform(dtype: Any) -> None:
    row = np.array([0, 3, 2.9, -20], dtype)
    assert {Sampling(1e-300, seed=s).begin((0,), 4).choose(row) for s in range(50)} == {1}
    assert {Sampling(1e300, seed=s).begin((0,), 4).choose(row) for s in range(200)} == {0, 1, 2, 3}


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    "settings_", [Sampling(), Sampling(0, presence_penalty=1.0), Sampling(0, processors=(Watermark(5),))]
)
def test_logits_that_are_not_finite_numbers_end_the_request(value: float, settings_: Sampling) -> None:
    row = np.zeros(5, np.float32)
    row[2] = value
    with pytest.raises(BadLogits, match="not finite"):
        settings_.begin((0,), 5).choose(row)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bans_that_leave_no_token_are_an_error_of_one_line(temperature: float) -> None:
    bans = Sampling(temperature, bias={0: -np.inf, 1: -np.inf}, min_tokens=2, stop_ids=frozenset({2}))
    with pytest.raises(SamplingError, match="no token is allowed at position 1"):
        bans.begin((0,), 3).choose(np.zeros(3, np.float32))


def test_no_processor_lifts_a_ban() -> None:
    class Raises:
        def begin(self, prompt: Sequence[int]) -> None: ...

        def apply(self, prefix: np.ndarray, state: None, scores_V: np.ndarray) -> np.ndarray:
            return np.where(np.arange(len(scores_V)) == 2, np.float32(99), scores_V)

        def advance(self, state: None, token: int) -> None: ...

    settings_ = Sampling(0, min_tokens=1, stop_ids=frozenset({2}), processors=(Raises(),))
    chooser = settings_.begin((0,), 4)
    assert chooser.choose(np.array([0, 1, 5, 0], np.float32)) == 1
    chooser.advance(1)
    assert chooser.choose(np.array([0, 1, 5, 0], np.float32)) == 2


@pytest.mark.parametrize(
    "wrong", [None, [0.0] * 4, np.zeros(3), np.zeros(4, np.int64), np.full(4, np.nan), np.full(4, np.inf)]
)
def test_a_processor_that_returns_no_scores_is_an_error_with_its_name(wrong: Any) -> None:
    class Odd(Watermark):
        def apply(self, prefix: np.ndarray, state: Any, scores_V: np.ndarray) -> np.ndarray:
            return wrong

    with pytest.raises(ProcessorError, match="processor Odd returned"):
        Sampling(0, processors=(Odd(4),)).begin((0,), 4).choose(np.zeros(4, np.float32))


def test_a_processor_cannot_change_the_prefix() -> None:
    class Writes(Watermark):
        def apply(self, prefix: np.ndarray, state: Any, scores_V: np.ndarray) -> np.ndarray:
            prefix[0] = 1
            return scores_V

    with pytest.raises(ValueError, match="read-only"):
        Sampling(0, processors=(Writes(4),)).begin((0,), 4).choose(np.zeros(4, np.float32))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1: give 0 (greedy) or more"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"temperature": "1"}, "temperature is '1'"),
        ({"temperature": True}, "temperature is True"),
        ({"top_k": -1}, "top_k is -1: give a whole number, 0 (off) or more"),
        ({"top_k": 1.5}, "top_k is 1.5"),
        ({"top_p": 0}, "top_p is 0: give above 0, at most 1 (off)"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"min_p": 2}, "min_p is 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1: give -2 to 2"),
        ({"frequency_penalty": None}, "frequency_penalty is a NoneType"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"seed": 2**64}, f"seed is {2**64}: give a whole number, 0 to {2**64 - 1}"),
        ({"seed": -1}, "seed is -1"),
        ({"bias": {-1: 0.0}}, "a token id of bias is -1"),
        ({"bias": {1: float("inf")}}, "bias of token 1 is inf"),
        ({"bias": dict.fromkeys(range(2000), 1.0)}, "2000 biases: give at most 1024"),
    ],
)
def test_a_setting_outside_its_range_is_an_error_of_one_line(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(SamplingError) as raised:
        Sampling(**wrong)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_bias_outside_the_vocabulary_is_refused_where_a_request_begins() -> None:
    with pytest.raises(SamplingError, match="token id 4 of bias is outside the vocabulary of 4"):
        Sampling(bias={4: 1.0}).begin((0,), 4)


def test_an_end_outside_the_vocabulary_needs_no_ban() -> None:
    chooser = Sampling(0, min_tokens=1, stop_ids=frozenset({2, 9})).begin((0,), 4)
    assert chooser.choose(np.array([0, 1, 5, 0], np.float32)) == 1
