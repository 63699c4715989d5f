"""What a mask lets a query read in a call of known size, worked out from sizes, positions and a mask input of ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qbpass.admission.calls.call import Call
from qbpass.admission.dataflow import Flow
from qbpass.admission.mask_flow import LARGE

#: Longer than the windows of the models we know of (128 to 8,192 rows), and small enough to be worked out.
LONG_CALL = Call(2, 30_000)


def allowed_keys(masks: Sequence[str], flow: Flow, call: Call) -> np.ndarray[Any, Any] | None:
    """(queries, n) bool: the keys that the sum of the masks leaves each query; None where a mask's value is unknown."""
    total = np.zeros((1, 1, call.queries, call.extent))
    for mask in masks:
        value = flow.trace(call).value(mask)
        if value is None or value.dtype.kind != "f":
            return None
        try:
            total = total + value
        except ValueError:  # not broadcastable to the scores
            return None
    if total.shape != (1, 1, call.queries, call.extent):
        return None
    allowed: np.ndarray[Any, Any] = total[0, 0] > LARGE
    return allowed


def hidden_before(allowed: np.ndarray[Any, Any], call: Call) -> tuple[int, int] | None:
    """(query, key) of the first key up to a query's own position that it may not read; None where there is none."""
    for row in range(call.queries):
        hidden = np.flatnonzero(~allowed[row, : call.past + row + 1])
        if hidden.size:
            return row, int(hidden[0])
    return None
