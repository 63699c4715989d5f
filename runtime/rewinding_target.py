"""Native blocks on the frozen graph: the same past bound again for every call, where plain decoding only moves on."""

from __future__ import annotations

from typing import Any

from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle
from qbpass.runtime.prefill import recipe_rows
from qbpass.runtime.serial_target import SerialTarget


class RewindingTarget(SerialTarget):
    """A SerialTarget that can go back to every length it was told to keep."""

    @classmethod
    def on_session_of(cls, serial: Any, bundle: Bundle, spec: SessionSpec, max_queries: int) -> RewindingTarget:
        """Over the session of a SerialTarget that is there already."""
        manifest = bundle.manifest
        return cls(
            serial.session,
            bundle.reference.contract,
            spec,
            context_length=manifest.context_length,
            max_queries=max_queries,
            prefill_rows=recipe_rows(manifest.recipe.prefill),
            share_cache=serial.shares_cache,
        )

    def start(self, rows: int) -> None:
        super().start(rows)
        self._kept: dict[int, list[Any]] = {}

    def keep(self) -> None:
        """Let `rollback` come back to this length."""
        self._kept[self._length] = self._past

    def rollback(self, length: int) -> None:
        """Raises KeyError for a length that was not kept."""
        self._past, self._length = self._kept[length], length
