"""The adaptive policy never loses: with seconds of a simulated clock, against serial decoding on the same clock."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import PROMPT, Clock, TimedTarget, ToldDrafter, simulate

from qbpass.runtime.drafting.adaptive import AdaptivePolicy
from qbpass.runtime.policy import DraftingPolicy, FixedPolicy, Round

Seconds = Callable[[int, int], float]


def cheap(rows: int, extent: int) -> float:
    """Memory-bound: a further row costs a twentieth more."""
    return 0.02 * (1 + 0.05 * (rows - 1)) * (1 + 0.0005 * extent)


def dear(rows: int, extent: int) -> float:
    """Compute-bound: 1, 1.4, 1.7, 2."""
    return 0.008 * (1 + 0.45 * (rows - 1) ** 0.75) * (1 + 0.0005 * extent)


def linear(rows: int, extent: int) -> float:
    """Rows one by one: nothing is ever gained."""
    return 0.02 * rows * (1 + 0.0005 * extent)


def serial_seconds(seconds: Seconds, tokens: int) -> float:
    return sum(seconds(1, len(PROMPT) + row) for row in range(tokens - 1))


def ratio(rounds: list[Round], seconds: Seconds, tokens: int, total: float) -> float:
    """Serial decoding's seconds over these."""
    assert sum(len(round_.tokens) for round_ in rounds) == tokens - 1
    return serial_seconds(seconds, tokens) / total


def run(
    right: Callable[[int], bool],
    seconds: Seconds,
    tokens: int,
    *,
    max_queries: int = 4,
    token_seconds: float = 0.0,
    policy: DraftingPolicy | None = None,
    grade: Callable[[int], int] = lambda position: 0,
) -> tuple[list[Round], float]:
    """The rounds of a fresh engine's first request, and their ratio."""
    clock = Clock()
    target = TimedTarget(seconds, clock, max_queries)
    drafter = ToldDrafter(right, clock, token_seconds, grade)
    rounds, times = simulate(target, drafter, policy or AdaptivePolicy(max_queries), tokens)
    return rounds, ratio(rounds, seconds, tokens, times[-1])


def always(position: int) -> bool:
    return True


def never(position: int) -> bool:
    return False


@pytest.mark.parametrize("token_seconds", [0.0, 0.004])
@pytest.mark.parametrize("seconds", [cheap, dear, linear])
@pytest.mark.parametrize("max_queries", [2, 4, 8])
def test_drafts_that_are_never_right_cost_at_most_three_percent(
    seconds: Seconds, max_queries: int, token_seconds: float
) -> None:
    for tokens in (64, 128, 512):
        _, gained = run(never, seconds, tokens, max_queries=max_queries, token_seconds=token_seconds)
        assert gained >= 1 / 1.03


def test_drafting_as_much_as_fits_does_cost_more() -> None:
    """The bound above is the policy's: without one the same drafts double the time."""
    _, gained = run(never, dear, 128, policy=FixedPolicy())
    assert gained < 0.6


@pytest.mark.parametrize("max_queries", [2, 4, 8])
def test_drafts_that_are_always_right_are_soon_as_wide_as_the_graph(max_queries: int) -> None:
    rounds, gained = run(always, cheap, 128, max_queries=max_queries)
    assert [round_.proposed for round_ in rounds[12:-1]] == [max_queries - 1] * (len(rounds) - 13)
    _, most = run(always, cheap, 128, max_queries=max_queries, policy=FixedPolicy())
    assert gained > 0.8 * most


def test_where_a_row_costs_as_much_as_a_call_hardly_anything_is_verified() -> None:
    rounds, gained = run(always, linear, 128)
    assert sum(round_.proposed for round_ in rounds[10:]) < 0.15 * len(rounds)
    assert gained > 0.99


@pytest.mark.parametrize("token_seconds", [0.0, 0.004])
def test_it_stops_when_text_becomes_unpredictable_and_comes_back(token_seconds: float) -> None:
    """Thirds of 200 tokens: predictable, not, predictable again."""

    def right(position: int) -> bool:
        return not 200 <= position - len(PROMPT) < 400

    rounds, gained = run(right, dear, 600, token_seconds=token_seconds / 4)

    def proposed(first: int, last: int) -> float:
        chosen = [round_ for round_ in rounds if first <= round_.rows - len(PROMPT) < last]
        return sum(round_.proposed for round_ in chosen) / len(chosen)

    assert proposed(50, 190) > 2.5
    assert proposed(230, 400) < 0.25
    assert proposed(450, 600) > 2.5
    assert gained > 1.2


def test_a_grade_that_is_wrong_does_not_discredit_one_that_is_right() -> None:
    """Even stretches of eight positions have good evidence, odd ones bad."""

    def good(position: int) -> bool:
        return position // 8 % 2 == 0

    rounds, gained = run(good, dear, 400, grade=lambda position: int(good(position)))
    late = rounds[len(rounds) // 2 :]
    assert all(round_.proposed == 0 for round_ in late if round_.grade == 0)
    assert sum(round_.proposed > 0 for round_ in late if round_.grade == 1) > 10
    assert gained > 1.1


def test_what_is_withheld_teaches_too() -> None:
    """Free drafts that became right while none was verified are taken up without a trial."""
    clock = Clock()
    policy = AdaptivePolicy(4)
    target = TimedTarget(dear, clock, 4)
    simulate(target, ToldDrafter(never, clock), policy, 300)
    rounds, _ = simulate(target, ToldDrafter(lambda position: position > 40, clock), policy, 120)
    first = next(index for index, round_ in enumerate(rounds) if round_.proposed)
    assert all(round_.accepted == round_.proposed for round_ in rounds[first:])


def test_drafts_that_cost_more_than_they_save_are_asked_for_rarely() -> None:
    rounds, gained = run(lambda position: position % 2 == 0, dear, 400, token_seconds=0.006)
    assert sum(round_.asked for round_ in rounds) < 40
    assert gained > 0.97


def test_what_is_known_of_costs_outlives_a_request() -> None:
    clock = Clock()
    policy = AdaptivePolicy(4)
    target = TimedTarget(cheap, clock, 4)
    simulate(target, ToldDrafter(always, clock), policy, 60)
    rounds, _ = simulate(target, ToldDrafter(always, clock), policy, 60)
    assert rounds[0].proposed == 3


def test_delays_of_single_calls_change_little() -> None:
    """One call in ten takes three times as long: no width is blamed for it."""
    noise = random.Random(0)

    def delayed(rows: int, extent: int) -> float:
        return cheap(rows, extent) * (3.0 if noise.random() < 0.1 else 1.0)

    rounds, _ = run(always, delayed, 400)
    late = rounds[len(rounds) // 3 : -1]
    assert sum(round_.proposed == 3 for round_ in late) >= 0.9 * len(late)


@settings(max_examples=60, deadline=None)
@given(
    calls=st.lists(st.floats(0.0, 10.0), min_size=8, max_size=8),
    drafts=st.floats(0.0, 5.0),
    pattern=st.lists(st.booleans(), min_size=1, max_size=9),
    grades=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    max_queries=st.integers(1, 8),
    tokens=st.integers(1, 50),
)
def test_no_clock_and_no_draft_changes_the_output(
    calls: list[float], drafts: float, pattern: list[bool], grades: list[int], max_queries: int, tokens: int
) -> None:
    """simulate() compares every token; seconds may be zero, or nonsense."""
    clock = Clock()
    target = TimedTarget(lambda rows, extent: calls[(rows * 3 + extent) % 8], clock, max_queries)
    drafter = ToldDrafter(
        lambda position: pattern[position % len(pattern)],
        clock,
        drafts,
        lambda position: grades[position % len(grades)],
    )
    policy = AdaptivePolicy(max_queries)
    for _ in range(2):
        simulate(target, drafter, policy, tokens)


@pytest.mark.parametrize("seconds", [cheap, linear])
def test_a_width_is_tried_when_half_as_many_rows_were(seconds: Seconds) -> None:
    rounds, _ = run(always, seconds, 64, max_queries=8)
    widths = [1 + round_.proposed for round_ in rounds]
    assert all(width <= 2 * max(widths[:index]) for index, width in enumerate(widths) if index)
    assert widths[0] == 1
