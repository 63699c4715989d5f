"""Arrays as long as a vocabulary that are used within one choice and then again: fresh memory of that size costs more
than what is computed in it.
"""

from __future__ import annotations

import threading

import numpy as np


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}


_SCRATCH = _Scratch()


def scratch(use: str, count: int) -> np.ndarray:
    """(count,) float64 of anything, this thread's own until it asks again for the same use."""
    array = _SCRATCH.arrays.get(use)
    if array is None or len(array) < count:
        array = _SCRATCH.arrays[use] = np.empty(count, np.float64)
    return array[:count]
