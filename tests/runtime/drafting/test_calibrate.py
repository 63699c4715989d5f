"""Before its first request an engine may see what calls of every width cost."""

from __future__ import annotations

import pytest
from simulated import Clock, TimedTarget, ToldDrafter, simulate

from qbpass.runtime.drafting.adaptive import AdaptivePolicy
from qbpass.runtime.drafting.calibrate import calibrate

RATIOS = {1: 1.0, 2: 1.46, 3: 1.75, 4: 2.0}


def test_the_curve_is_known_and_the_target_as_before() -> None:
    clock = Clock()
    target = TimedTarget(lambda rows, extent: 0.01 * RATIOS[rows], clock, 4)
    policy = AdaptivePolicy(4)
    calibrate(policy.costs, target, clock)
    assert policy.costs.ratios() == pytest.approx(RATIOS, rel=0.05)
    rounds, _ = simulate(target, ToldDrafter(lambda position: True, clock), policy, 20)
    assert rounds[1].proposed > 0


def test_a_first_call_that_takes_long_tells_nothing() -> None:
    clock = Clock()
    slow = {1, 2, 3, 4}

    def seconds(rows: int, extent: int) -> float:
        if rows in slow:
            slow.remove(rows)
            return 1.0
        return 0.01 * RATIOS[rows]

    policy = AdaptivePolicy(4)
    calibrate(policy.costs, TimedTarget(seconds, clock, 4), clock)
    assert policy.costs.seconds(1) == pytest.approx(0.01, rel=0.05)


def test_a_context_without_room_is_left_alone() -> None:
    target = TimedTarget(lambda rows, extent: 0.01, Clock(), 4)
    target.context_length = 4
    policy = AdaptivePolicy(4)
    calibrate(policy.costs, target)
    assert not policy.costs.seen
    assert target.fed == []
