"""Forms timed in turns within one run, so that a slow minute of the machine falls on all of them."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Ratio:
    """Of two forms, round by round: the median, and the quartiles around it."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Timings:
    """seconds[form][r]: what `form` took in round r."""

    seconds: dict[str, np.ndarray]

    def median_ms(self, form: str) -> float:
        return float(np.median(self.seconds[form])) * 1e3

    def ratio(self, form: str, base: str) -> Ratio:
        """form / base. Both sides of a quotient come from the same round."""
        quotients = self.seconds[form] / self.seconds[base]
        low, median, high = np.percentile(quotients, (25, 50, 75))
        return Ratio(float(median), float(low), float(high))

    def mean_over(self, groups: Mapping[str, Iterable[str]]) -> Timings:
        """New forms, each the round-by-round mean of several."""
        return Timings(
            {name: np.mean([self.seconds[form] for form in forms], axis=0) for name, forms in groups.items()}
        )


def interleave(
    forms: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warmups: int = 2,
    before: Mapping[str, Callable[[], object]] | None = None,
    progress: Callable[[str, int, int], None] = lambda text, done, total: None,
) -> Timings:
    """Call every form once a round, in an order drawn anew for each round (seeded), and time each call.

    before: untimed calls that put a form back where its call starts.
    """
    preparations = before or {}
    order, draw = list(forms), random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in order}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for turn in range(-warmups, rounds):
            progress("warming up" if turn < 0 else "timing", max(turn, 0), rounds)
            draw.shuffle(order)
            for name in order:
                if name in preparations:
                    preparations[name]()
                start = time.perf_counter()
                forms[name]()
                took = time.perf_counter() - start
                if turn >= 0:
                    seconds[name].append(took)
    finally:
        if collecting:
            gc.enable()
    return Timings({name: np.array(values) for name, values in seconds.items()})
