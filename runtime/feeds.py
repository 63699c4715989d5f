"""The small inputs of a call: token ids, mask, positions, phase, the first row of logits asked for.

They lie in memory that is kept from request to request: a mask of ones and positions counting up are the same for
every call but for how much of them it reads, so a call fills in its tokens and binds addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_int64
from typing import Any

import numpy as np

from qbpass.rewrites.guard import PHASE_INPUT
from qbpass.rewrites.head import LOGITS_FROM
from qbpass.rewrites.manifest import Interface
from qbpass.runtime.addresses import INT64, ort_device, raw_binders


class Feeds:
    """One target's, for every graph that it runs."""

    def __init__(self, interface: Interface):
        self._interface = interface
        self._host = ort_device("cpu")
        # A few numbers, written in every call: through numpy that takes longer.
        self._ids = (c_int64 * 8)()
        self._ids_at = addressof(self._ids)
        self._scalars = (c_int64 * 2)()  # the phase, the first row asked for
        self._scalars_at = addressof(self._scalars)
        self.reserve(0)

    def reserve(self, rows: int) -> None:
        """Positions 0 .. rows - 1 and a mask as long."""
        self.rows = rows
        self._ones, self._positions = np.ones(rows, np.int64), np.arange(rows, dtype=np.int64)
        self._ones_at, self._positions_at = self._ones.ctypes.data, self._positions.ctypes.data

    def bind(self, binding: Any, tokens: Sequence[int], past: int, first: int | None, phase: int | None) -> None:
        """Rows past .. past + len(tokens) - 1; first: the first of them whose logits are asked for, None for a
        graph that is not asked.

        phase: None for a graph without a phase input. Bound until the next `bind` or `reserve` of this object.
        """
        names, host, rows, full = self._interface, self._host, len(tokens), past + len(tokens)
        bind_input, _ = raw_binders(binding)
        if full > self.rows:
            raise ValueError(f"{full} rows asked of feeds for {self.rows}")
        if rows > len(self._ids):
            self._ids = (c_int64 * rows)()
            self._ids_at = addressof(self._ids)
        self._ids[:rows] = list(tokens)
        bind_input(names.input_ids, host, INT64, (1, rows), self._ids_at)
        if names.attention_mask is not None:
            bind_input(names.attention_mask, host, INT64, (1, full), self._ones_at)
        if names.position_ids is not None:
            bind_input(names.position_ids, host, INT64, (1, rows), self._positions_at + 8 * past)
        if phase is not None:
            self._scalars[0] = phase
            bind_input(PHASE_INPUT, host, INT64, (), self._scalars_at)
        if first is not None:
            self._scalars[1] = first
            bind_input(LOGITS_FROM, host, INT64, (1,), self._scalars_at + 8)
