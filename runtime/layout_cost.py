"""What a plan's complete verification call costs, beside calls of the reference's own graph.

Calls of both sessions are interleaved, so that a slow minute of the machine falls on all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np

from qbpass.models.decoder import Decoder
from qbpass.models.session import SessionSpec, open_session
from qbpass.rewrites.apply import rewrite_graph
from qbpass.rewrites.plan import AnyLayout, RewritePlan
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.rewinding_target import RewindingTarget

PAST, REPEATS, WARM_UP = 192, 15, 3


def layout_cost(frozen: Decoder, plan: RewritePlan, spec: SessionSpec) -> Mapping[AnyLayout, float]:
    """Over the frozen graph's call of max_queries rows: {the plan's layout: its call, "gs": as many calls of one row}.

    Random tokens behind a prompt of PAST, or of half the context where that is shorter. Opens two sessions.
    """
    rows = plan.max_queries
    chained = {chain.site.layer for chain in plan.chains}
    shared = chained == {pair.layer for pair in frozen.contract.kv}
    native = RewindingTarget.of_frozen(frozen, spec, rows, share_cache=shared)
    graph = rewrite_graph(frozen, plan).SerializeToString()
    target = BlockTarget.of_plan(open_session(graph, spec, weights=frozen.weights), frozen, plan, spec)
    past = min(PAST, (frozen.context_length or 2 * PAST) // 2)
    tokens = np.random.default_rng(0).integers(0, frozen.contract.vocab_size, past + rows).tolist()
    for each in (target, native):
        each.start(past + rows)
        each.prefill(tokens[:past])
    native.keep()

    def call(of: BlockTarget | RewindingTarget, width: int) -> Callable[[], None]:
        def run() -> None:
            of.verify(tokens[past : past + width])
            of.rollback(past)

        return run

    seconds = interleaved({"layout": call(target, rows), "native": call(native, rows), "row": call(native, 1)})
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
