"""Costs of calls are learned from the seconds of calls, whichever widths happen to be run."""

from __future__ import annotations

import random

import pytest

from qbpass.runtime.drafting.call_costs import CallCosts

RATIOS = {1: 1.0, 2: 1.46, 3: 1.75, 4: 2.0}


def learned(calls: int, *, seed: int = 0, noise: float = 0.05, widths: tuple[int, ...] = (1, 2, 3, 4)) -> CallCosts:
    draw, costs = random.Random(seed), CallCosts(4)
    for extent in range(calls):
        width = draw.choice(widths)
        costs.observe(width, 50 + extent, 0.01 * RATIOS[width] * draw.lognormvariate(0, noise))
    return costs


def test_before_any_call_the_unit_is_a_call_of_one_row() -> None:
    costs = CallCosts(4)
    assert not costs.seen
    assert costs.seconds(1) == 1.0
    assert 1 < costs.seconds(2) < costs.seconds(3) < costs.seconds(4) < 2


@pytest.mark.parametrize("seed", range(5))
def test_forty_calls_tell_the_curve(seed: int) -> None:
    costs = learned(40, seed=seed)
    for width, ratio in RATIOS.items():
        assert costs.seconds(width) == pytest.approx(0.01 * ratio, rel=0.08)
        assert costs.ratios()[width] == pytest.approx(ratio, rel=0.08)


def test_a_dear_width_makes_wider_ones_dearer_before_they_are_tried() -> None:
    before = CallCosts(4).seconds(4)
    costs = learned(20, widths=(1, 2))
    assert costs.widest_seen == 2
    assert costs.seconds(4) / costs.seconds(1) > before * 1.3


def test_one_width_tells_how_fast_the_machine_is_for_all() -> None:
    """Twice as slow, and only calls of four rows since: one row is taken for twice as slow, too."""
    costs = learned(60)
    for extent in range(30):
        costs.observe(4, 110 + extent, 0.02 * RATIOS[4])
    assert costs.seconds(1) == pytest.approx(0.02, rel=0.15)
    assert costs.ratios()[4] == pytest.approx(RATIOS[4], rel=0.15)


def test_a_longer_cache_is_believed_at_once() -> None:
    """The next request has sixteen times the rows, and each call takes half as long again."""
    costs = learned(60)
    for call in range(2):
        costs.observe(1, 1600 + call, 0.015)
    assert costs.seconds(1) == pytest.approx(0.015, rel=0.05)
    assert costs.seconds(4) == pytest.approx(0.015 * RATIOS[4], rel=0.1)


def test_one_delayed_call_is_hardly_believed() -> None:
    costs = learned(60)
    before = costs.seconds(4)
    costs.observe(4, 111, 1.0)
    assert costs.seconds(4) < before * 1.15


def test_what_can_not_be_a_cost_is_ignored() -> None:
    costs = learned(20)
    before = costs.ratios()
    costs.observe(4, 100, 0.0)
    costs.observe(5, 100, 0.01)
    costs.observe(0, 100, 0.01)
    assert costs.ratios() == before
