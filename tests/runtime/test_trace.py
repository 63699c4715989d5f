"""Counters that contradict each other are found, whichever one is off."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from qbpass.runtime.trace import Trace

# Four rounds: 3, 1 and 0 of three proposals accepted, then one of three, which was a stop; one more was withheld.
HONEST = Trace(
    prompt_tokens=5,
    rounds=4,
    plain_rounds=0,
    speculative_rounds=4,
    rows=16,
    rows_committed=8,
    rows_rolled_back=8,
    drafted=13,
    withheld=1,
    proposed=12,
    accepted=5,
    rejected=5,
    discarded=2,
    corrections=2,
    bonuses=1,
    stops_inside=1,
)
GENERATED = 9
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
    assert HONEST.acceptance == 5 / 12
    assert HONEST.tokens_per_round == 2
    assert Trace().acceptance is None
    assert Trace().tokens_per_round is None


def test_counters_of_several_requests_add_up() -> None:
    total = Trace()
    total.add(HONEST)
    total.add(HONEST)
    assert asdict(total) == {name: 2 * value for name, value in asdict(HONEST).items()}
