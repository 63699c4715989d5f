"""What a target's call costs by its rows, tracked from the seconds of calls as they come.

A Kalman filter over logarithms: log seconds of a call of q rows = level + step_2 + ... + step_q. The level is the
machine's, the extent's and the request's, and moves fast; the steps are the graph's, and barely move. So a call of any
width tells how fast the machine is now, and only the relation of widths has to be learned for good. A call that was
delayed by something else counts as far as it could be expected, and no further.

Source: Kalman, A New Approach to Linear Filtering and Prediction Problems (1960); Huber's clipping of innovations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

#: A priori: one more row costs a tenth more. Steps are unsure together and each by itself (deviations, log).
STEP, STEP_TOGETHER, STEP_ALONE = math.log(1.1), 0.12, 0.12
NOISE = 0.06  # deviation of one call, log
LEVEL_DRIFT, STEP_DRIFT = 0.02, 0.002  # deviations a call
EXTENT_DRIFT = 0.5  # deviation of the level for twice the KV rows
CLIP = 2.5  # what differs by more than so many deviations counts as if by as many


class CallCosts:
    """Of calls of 1 to `widest` rows."""

    def __init__(self, widest: int):
        self.widest = widest
        self._state = np.array([0.0] + [STEP] * (widest - 1))
        self._spread = np.full((widest, widest), STEP_TOGETHER**2) + np.eye(widest) * STEP_ALONE**2
        self._spread[0, :] = self._spread[:, 0] = 0.0
        self._drift = np.diag([LEVEL_DRIFT**2] + [STEP_DRIFT**2] * (widest - 1))
        self._calls = [0] * (widest + 1)  # seen, by width
        self._extent = 0  # KV rows at the latest call
        self._known: list[float] | None = None

    @property
    def seen(self) -> bool:
        """Whether any call was."""
        return any(self._calls)

    @property
    def widest_seen(self) -> int:
        return max((width for width, calls in enumerate(self._calls) if calls), default=0)

    def seconds(self, width: int) -> float:
        """Of the next call of `width` rows. Before the first call the unit is a call of one row."""
        if self._known is None:
            self._known = [0.0, *np.exp(np.cumsum(self._state)).tolist()]
        return self._known[width]

    def observe(self, width: int, extent: int, seconds: float) -> None:
        """A call of `width` rows behind `extent` rows in the KV cache took so long."""
        if seconds <= 0 or not 1 <= width <= self.widest:
            return
        reads = np.zeros(self.widest)
        reads[:width] = 1.0
        first = not self.seen
        if first:
            self._state[0] = math.log(seconds) - self._state[1:width].sum()
            self._spread[0, 0] = 1.0
        else:
            self._spread += self._drift
            self._spread[0, 0] += (EXTENT_DRIFT * math.log2((1 + extent) / (1 + self._extent))) ** 2
        gain = self._spread @ reads
        variance = float(reads @ gain) + NOISE**2
        innovation = math.log(seconds) - float(reads @ self._state)
        # A call that took far too long is one that tells little: said again and again, it is believed.
        variance *= max(abs(innovation) / (CLIP * math.sqrt(variance)), 1.0)
        self._state += gain * (innovation / variance)
        self._spread -= np.outer(gain, gain) / variance
        self._calls[width] += 1
        self._extent = extent
        self._known = None

    def doubt(self, width: int) -> float:
        """The deviation of the logarithm of seconds(width) / seconds(1)."""
        return math.sqrt(max(float(self._spread[1:width, 1:width].sum()), 0.0))

    def ratios(self) -> Mapping[int, float]:
        """Seconds of each width over those of one row."""
        return {width: self.seconds(width) / self.seconds(1) for width in range(1, self.widest + 1)}
