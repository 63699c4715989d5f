"""GS as a graph: blocks of rows in one call, each row through the whole decoder by itself (rewrites/gs_graph.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qbpass.models.contract import DecoderContract
from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.guard import PHASE_INPUT
from qbpass.rewrites.phases import Phase, layout_active
from qbpass.runtime.cropped_target import CroppedTarget
from qbpass.runtime.phase_guard import PhaseGuard, Role, Stage
from qbpass.runtime.placed_session import open_placed
from qbpass.runtime.prefill import target_prompt_rows


class GSTarget(CroppedTarget):
    """A guarded Loop's session with its phase guard. One request at a time."""

    def __init__(
        self,
        session: Any,
        contract: DecoderContract,
        spec: SessionSpec,
        *,
        context_length: int | None,
        max_queries: int,
        guard: PhaseGuard | None = None,
        native_session: Any = None,
        phase_mask: int = 0,
        prefill_rows: int | None = None,
    ):
        """native_session, phase_mask: only where `session` is a graph of the active layout alone; calls in phases
        outside the mask run on `native_session`.
        """
        super().__init__(
            session,
            contract,
            spec,
            context_length=context_length,
            max_queries=max_queries,
            prefill_rows=prefill_rows,
        )
        self.guard = guard or PhaseGuard()
        self._native_session, self._phase_mask = native_session, phase_mask

    @classmethod
    def from_bundle(cls, bundle: Bundle, spec: SessionSpec) -> GSTarget:
        """The bundle's guarded graph, or its two graphs, which hold the weights twice."""
        manifest = bundle.manifest
        straight = manifest.emission == "specialized"

        def opened(name: str) -> Any:
            return open_placed(bundle.graph(name), spec, weights=bundle.weights)

        return cls(
            opened("decoder.active.onnx" if straight else "decoder.onnx"),
            bundle.reference.contract,
            spec,
            context_length=manifest.context_length,
            max_queries=manifest.max_queries,
            native_session=opened("decoder.native.onnx") if straight else None,
            phase_mask=manifest.phase_mask,
            prefill_rows=target_prompt_rows(manifest),
        )

    def native(self, spec: SessionSpec) -> GSTarget:
        """The same session, all rows of a call together: plain speculation, arm C_MQ."""
        return self._sharing(spec, PhaseGuard(self.guard.role, native_only=True), self.prefill_rows)

    def sibling(self, spec: SessionSpec) -> GSTarget:
        """The same session in the same role and layout, with a cache of its own: its calls may run at the same time."""
        guard = PhaseGuard(self.guard.role, native_only=self.guard.native_only)
        return self._sharing(spec, guard, self.prefill_rows)

    def draft(self, spec: SessionSpec, prefill_rows: int | None) -> GSTarget:
        """The same session in the role of a draft model, with a cache of its own."""
        return self._sharing(spec, PhaseGuard(Role.DRAFT), prefill_rows)

    def _sharing(self, spec: SessionSpec, guard: PhaseGuard, prefill_rows: int | None) -> GSTarget:
        return GSTarget(
            self.session,
            self.contract,
            spec,
            context_length=self.context_length,
            max_queries=self.max_queries,
            guard=guard,
            native_session=self._native_session,
            phase_mask=self._phase_mask,
            prefill_rows=prefill_rows,
        )

    def start(self, rows: int) -> None:
        self.guard.new_request()
        super().start(rows)

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        with self.guard.at(Stage.PREFILL):
            return super().prefill(tokens)

    def verify(self, tokens: Sequence[int]) -> np.ndarray:
        with self.guard.at(Stage.CONTINUATION):
            return super().verify(tokens)

    def _graph(self) -> Any:
        if self._native_session is None or layout_active(Phase(self.guard.value), self._phase_mask):
            return self.session
        return self._native_session

    def _phase_feeds(self) -> dict[str, np.ndarray]:
        return {PHASE_INPUT: np.array(self.guard.value, np.int64)} if self._native_session is None else {}
