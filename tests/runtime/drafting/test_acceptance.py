"""Acceptance is counted by what became visible, for what was verified and what was withheld alike."""

from __future__ import annotations

import pytest

from qbpass.runtime.drafting.acceptance import PRIOR, Acceptance


def rate(acceptance: Acceptance, grade: int, place: int) -> float:
    expected = acceptance.expected(grade, place + 1)
    before = expected[place] - expected[place - 1] if place else 1.0
    return (expected[place + 1] - expected[place]) / before


def test_nothing_known_is_the_prior_at_every_place() -> None:
    assert Acceptance().expected(3, 3) == pytest.approx([0, PRIOR, PRIOR + PRIOR**2, PRIOR + PRIOR**2 + PRIOR**3])


def test_a_proposal_is_judged_as_its_tokens_become_visible() -> None:
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.proposed(1, (5, 6, 7))
        acceptance.visible([5])
        acceptance.visible([6, 8])  # a proposal is judged over several rounds
    assert rate(acceptance, 1, 0) > 0.9
    assert rate(acceptance, 1, 1) > 0.9
    assert rate(acceptance, 1, 2) < 0.1


def test_behind_the_first_wrong_token_nothing_is_judged() -> None:
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.proposed(1, (5, 6, 7))
        acceptance.visible([9, 6, 7])
    assert set(acceptance._ever) == {(1, 0)}


def test_grades_are_counted_apart() -> None:
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.proposed(1, (5,))
        acceptance.visible([5])
        acceptance.proposed(2, (5,))
        acceptance.visible([6])
    assert rate(acceptance, 1, 0) > 0.9
    assert rate(acceptance, 2, 0) < 0.1


def test_a_new_request_begins_with_what_others_were_and_forgets_what_waits() -> None:
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.proposed(1, (5,))
        acceptance.visible([5])
    acceptance.proposed(1, (5,))
    acceptance.new_request()
    acceptance.visible([9])
    assert rate(acceptance, 1, 0) > 0.9
    for _ in range(12):
        acceptance.proposed(1, (5,))
        acceptance.visible([9])
    assert rate(acceptance, 1, 0) < 0.4
