"""An engine's cost curve before its first request: calls of every width, on tokens that mean nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

from qbpass.runtime.drafting.call_costs import CallCosts
from qbpass.runtime.target import Target

#: Rows in the cache, and how often each width is called behind them; the first time round tells nothing.
ROWS, TURNS = 64, 4


def calibrate(costs: CallCosts, target: Target, clock: Callable[[], float] = time.perf_counter) -> None:
    """Let `costs` see calls of each width of an idle target, in turns. The next request begins anew, as always.

    Takes as long as TURNS calls of each width and a prompt of ROWS tokens. Raises what the target's calls raise.
    """
    widths = range(1, min(target.max_queries, costs.widest) + 1)
    room = ROWS + target.max_queries
    past = ROWS if target.context_length is None else min(ROWS, target.context_length - target.max_queries)
    if past < 1:
        return
    target.start(room)
    target.prefill([0] * past)
    for turn in range(TURNS):
        for width in widths:
            before = clock()
            target.verify([0] * width)
            seconds = clock() - before
            target.rollback(past)
            if turn:
                costs.observe(width, past, seconds)
