"""Counters that contradict each other are found, whichever one is off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qbpass.runtime.trace import Trace

# Three rounds of three proposals each: 3, 1 and 0 accepted, the last round cut by a stop.
HONEST = Trace(
    prompt_tokens=5,
    rounds=3,
    rows=12,
    rows_rolled_back=7,
    proposed=9,
    accepted=4,
    rejected=5,
    corrections=2,
    bonuses=1,
    discarded=2,
)
GENERATED = 6
COUNTERS = [name for name in vars(HONEST) if name != "prompt_tokens"]


def test_honest_counters_pass() -> None:
    HONEST.check(GENERATED)
    Trace(prompt_tokens=1).check(1)


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("counter", COUNTERS)
def test_a_tampered_counter_is_found(counter: str, by: int) -> None:
    tampered = replace(HONEST, **{counter: getattr(HONEST, counter) + by})
    with pytest.raises(AssertionError, match="contradict each other"):
        tampered.check(GENERATED)


@pytest.mark.parametrize("generated", [GENERATED - 1, GENERATED + 1])
def test_a_token_that_no_counter_explains_is_found(generated: int) -> None:
    with pytest.raises(AssertionError, match="generated"):
        HONEST.check(generated)


def test_rates_are_shares_of_what_was_proposed_and_of_rounds() -> None:
    assert HONEST.acceptance == 4 / 9
    assert HONEST.tokens_per_round == 7 / 3
    assert Trace().acceptance is None
    assert Trace().tokens_per_round is None
