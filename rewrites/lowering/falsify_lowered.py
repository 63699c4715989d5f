"""Tries to prove wrong that a lowered site is the fused operator it stands for.

Serial rows are those of the frozen graph's own node, one row a call, with the keys and values it appends. A lowering
that differs from the kernel in one bit, in its rotation or its products, differs from them, whatever the layout does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from qbpass.rewrites.falsify import SiteFalsifier, Trial, Witness
from qbpass.rewrites.lowering.operands import FusedOperands, fused_of, random_fused_operands
from qbpass.rewrites.lowering.runners import LoweredRunner, OriginalRunner, RewrittenRunner
from qbpass.rewrites.plan import SiteForm

#: (past, rows) of native calls: prompts, chunks behind a past, and the widths of verification calls.
NATIVE_CALLS = ((0, 1), (0, 2), (0, 5), (0, 16), (0, 33), (0, 100), (5, 3), (17, 1), (64, 4), (60, 40))


class LoweredFalsifier(SiteFalsifier):
    """A row: (1, H, 1, dv), and behind it in the axis of heads the row's keys and values where the operator appends."""

    operands: FusedOperands

    def _within(self, pasts: Iterable[int], max_queries: int) -> tuple[int, ...]:
        """Positions that the operator's rotary tables hold."""
        limit = fused_of(self.site).positions
        return tuple(past for past in pasts if limit is None or past + max_queries <= limit)

    def _native_calls(self) -> list[tuple[int, int]]:
        limit = fused_of(self.site).positions
        return [(past, rows) for past, rows in NATIVE_CALLS if limit is None or past + rows <= limit]

    def _random(self, reach: int) -> FusedOperands:
        return random_fused_operands(
            self.site, max(reach, *(past + rows for past, rows in self._native_calls())), self.seed
        )

    def _serial_rows(self, positions: list[int]) -> dict[int, np.ndarray]:
        self.fused = OriginalRunner(self.frozen, self.site, self.spec)
        serial = {}
        for position in positions:
            serial[position] = self.fused.block(self.operands, position, 1)
            if fused_of(self.site).appends:
                self._write(position, serial[position])
        return serial

    def _write(self, position: int, row: np.ndarray) -> None:
        """The row's keys and values join the cache that later positions read."""
        heads, kv_heads = self.site.heads, self.site.kv_heads
        self.operands.key_nHD[position] = row[0, heads : heads + kv_heads, 0]
        self.operands.value_nHD[position] = row[0, heads + kv_heads :, 0]

    def _runner(self, form: SiteForm) -> Any:
        return RewrittenRunner(self.frozen, self._plan(form), self.site, "active", self.spec)

    @property
    def operator(self) -> str:
        return str(fused_of(self.site).node.op_type)

    def lowering_trial(self) -> Trial:
        """Whether the primitives as admission wrote them are the fused node, one row a call."""
        lowered = LoweredRunner(self.frozen, self.site, self.spec)
        result = Trial(SiteForm())
        for position, want in self.serial.items():
            self._compare_rows(result, lowered.block(self.operands, position, 1), want, position)
        return result

    def native_trial(self) -> Trial:
        """Whether the fused node over qbpass's own cache is the fused node over the exported one, call by call."""
        native = RewrittenRunner(self.frozen, self._plan(SiteForm()), self.site, "native", self.spec)
        result = Trial(SiteForm())
        for past, queries in self._native_calls():
            want = self.fused.block(self.operands, past, queries)
            self._compare_rows(result, native.block(self.operands, past, queries), want, past)
        return result

    def _compare_rows(self, result: Trial, got: np.ndarray, want: np.ndarray, past: int) -> None:
        queries = want.shape[2]
        result.rows += queries
        for row in range(queries):
            one, other = (np.ascontiguousarray(found[:, :, row : row + 1]) for found in (got, want))
            if one.tobytes() != other.tobytes():
                gap = float(np.max(np.abs(one.astype(np.float64) - other.astype(np.float64))))
                result.differing.append(Witness(past, queries, row, past + row + 1, self.seed, gap))
