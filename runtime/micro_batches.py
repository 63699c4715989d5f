"""GS by physical micro-batches: the rows of a block are calls of their own, on the reference's graph itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qbpass.models.session import SessionSpec
from qbpass.runtime.cropped_target import CroppedTarget
from qbpass.runtime.serial_target import SerialTarget


class MicroBatchTarget(CroppedTarget):
    """What speculation costs where every row is run alone. Right for any decoder the reference can run."""

    @classmethod
    def over(cls, serial: SerialTarget, spec: SessionSpec, max_queries: int) -> MicroBatchTarget:
        """On the session of the reference, read as its recipe says, with a cache of its own."""
        return cls(
            serial.session,
            serial.contract,
            spec,
            context_length=serial.context_length,
            max_queries=max_queries,
            share_cache=serial.shares_cache,
            prefill_rows=serial.prefill_rows,
        )

    def verify(self, tokens: Sequence[int]) -> np.ndarray:
        """Raises ValueError for more rows than a block has."""
        if not 1 <= len(tokens) <= self.max_queries:
            raise ValueError(f"{len(tokens)} rows asked of blocks of 1 to {self.max_queries}")
        return np.concatenate([self._call([token]) for token in tokens])
