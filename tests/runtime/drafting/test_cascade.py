"""A cascade proposes what is looked up where its evidence is strong, and a second drafter's tokens elsewhere."""

from __future__ import annotations

import pytest
from simulated import Clock, TimedTarget, ToldDrafter, simulate

from qbpass.runtime.choosing import GREEDY
from qbpass.runtime.drafter import NoDrafter
from qbpass.runtime.drafting.adaptive import AdaptivePolicy
from qbpass.runtime.drafting.cascade import SECOND, Cascade
from qbpass.runtime.drafting.drafts import parts_of
from qbpass.runtime.drafting.evidence import grade_of
from qbpass.runtime.drafting.suffix import SuffixDrafter
from qbpass.runtime.policy import Round


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("suffix+self", ("suffix", "self")),
        ("ngram+some/model", ("ngram", "some/model")),
        ("self", (None, "self")),
        ("suffix", (None, "suffix")),
        ("none+self", (None, "none+self")),
        ("a+b", (None, "a+b")),  # the path of a model
        ("suffix+", (None, "suffix+")),
    ],
)
def test_a_name_with_a_plus_is_a_cascade_where_the_first_part_is_looked_up(
    name: str, parts: tuple[str | None, str]
) -> None:
    assert parts_of(name) == parts


def right(position: int) -> bool:
    return True


def test_strong_evidence_goes_first_and_weak_evidence_to_the_second() -> None:
    second = ToldDrafter(right, Clock(), grade=lambda position: 4)
    cascade = Cascade(SuffixDrafter(), second, grade_of(3, 1))
    cascade.start([1, 2, 3, 9, 1, 2, 3], 64)
    assert (cascade.propose(1, GREEDY.fork).tokens, cascade.propose(1, GREEDY.fork).grade) == ((9,), grade_of(3, 1))
    cascade.extend([3, 2])
    drafted = cascade.propose(2, GREEDY.fork)
    assert (drafted.grade, len(drafted.tokens)) == (SECOND + 4, 2)
    assert second.length == 9


def test_where_both_have_nothing_nothing_is_proposed() -> None:
    cascade = Cascade(SuffixDrafter(), NoDrafter(), 1)
    cascade.start([1, 2, 3], 64)
    assert cascade.propose(3, GREEDY.fork).tokens == ()


def test_what_is_looked_up_for_nothing_saves_the_drafts_time() -> None:
    """Half of the text, in stretches of 16, is looked up as well as drafted; a drafted token costs 0.3 of a call."""

    def run(least_grade: int) -> tuple[list[Round], float]:
        clock = Clock()
        target = TimedTarget(lambda rows, extent: 0.02 * (1 + 0.06 * (rows - 1)), clock, 4)
        looked_up = ToldDrafter(right, clock, grade=lambda position: position // 16 % 2)
        cascade = Cascade(looked_up, ToldDrafter(right, clock, 0.006), least_grade)
        rounds, times = simulate(target, cascade, AdaptivePolicy(4), 400)
        return rounds, times[-1]

    (_, drafted), (both, saved) = run(least_grade=2), run(least_grade=1)
    assert saved < 0.85 * drafted
    assert {round_.grade for round_ in both[8:]} == {1, SECOND}
