"""What a plan's complete verification call costs, beside calls of the reference's own graph.

Calls of both sessions are interleaved, so that a slow minute of the machine falls on all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np

from qbpass.rewrites.plan import AnyLayout, RewritePlan
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.rewinding_target import RewindingTarget

PAST, REPEATS, WARM_UP = 192, 15, 3


def call_ratios(reference: RewindingTarget, target: BlockTarget, plan: RewritePlan) -> Mapping[AnyLayout, float]:
    """Over the frozen graph's call of max_queries rows: {the plan's layout: its call, "gs": as many calls of one row}.

    Random tokens behind a prompt of PAST, or of half the context where that is shorter.
    """
    rows = plan.max_queries
    past = min(PAST, (reference.context_length or 2 * PAST) // 2)
    tokens = np.random.default_rng(0).integers(0, reference.vocab_size, past + rows).tolist()
    for each in (reference, target):
        each.start(past + rows)
        each.prefill(tokens[:past])
    reference.keep()

    def call(of: BlockTarget | RewindingTarget, width: int) -> Callable[[], None]:
        def run() -> None:
            of.verify(tokens[past : past + width])
            of.rollback(past)

        return run

    calls = {"layout": call(target, rows), "native": call(reference, rows), "row": call(reference, 1)}
    seconds = interleaved(calls)
    return {plan.layout: seconds["layout"] / seconds["native"], "gs": rows * seconds["row"] / seconds["native"]}


def interleaved(calls: Mapping[str, Callable[[], None]]) -> dict[str, float]:
    """The median seconds of each call."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(WARM_UP + REPEATS):
        for name, run in calls.items():
            start = time.perf_counter()
            run()
            if turn >= WARM_UP:
                taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in taken.items()}
