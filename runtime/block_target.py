"""The rewritten decoder: blocks of rows over an in-place KV cache, every row as serial decoding would evaluate it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from qbpass.models.decoder import Decoder
from qbpass.models.errors import BundleError
from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.extents import ExtentRule, segment_extents
from qbpass.rewrites.guard import SECOND_LAYOUT
from qbpass.rewrites.manifest import Interface
from qbpass.rewrites.phases import Phase, layout_active
from qbpass.rewrites.plan import HeadForm, RewritePlan
from qbpass.rewrites.width_graphs import width_file, widths_of
from qbpass.runtime.addresses import elem_type, ort_device, raw_binders
from qbpass.runtime.caches import Caches
from qbpass.runtime.call_error import session_run
from qbpass.runtime.element_types import logits_dtype
from qbpass.runtime.feeds import Feeds
from qbpass.runtime.phase_guard import PhaseGuard, Role, Stage
from qbpass.runtime.placed_session import open_placed
from qbpass.runtime.prefill import calls, target_prompt_rows
from qbpass.runtime.row_calls import RowCalls


class BlockTarget:
    """A guarded graph's session with its cache and phase guard. One request at a time.

    Shapes: input ids (1, q) int64, attention mask (1, n) int64, positions (1, q) int64, logits (1, q, vocabulary).
    """

    def __init__(
        self,
        session: Any,
        interface: Interface,
        spec: SessionSpec,
        *,
        extents: ExtentRule,
        segments: int,
        max_queries: int,
        context_length: int | None,
        guard: PhaseGuard | None = None,
        native_session: Any = None,
        phase_mask: int = 0,
        head: HeadForm = "all",
        chained: frozenset[int] = frozenset(),
        prefill_rows: int | None = None,
        second_layout: bool = False,
        row_calls: RowCalls | None = None,
        by_width: Mapping[int, Any] = MappingProxyType({}),
    ):
        """native_session: only where `session` is a straight-line graph of the active layout; calls in phases outside
        `phase_mask` run on it. chained: layers whose attention is a chain of operators, one a query (rewrites/chains/).
        prefill_rows: rows of the prompt a call (prefill.py); None for all of them in one. second_layout: of a graph
        that holds two. row_calls: what evaluates a row alone, where every layer is chained.
        by_width: rows -> session of the active layout's graph for calls of so many (rewrites/width_graphs.py).
        """
        self.session = session
        self._native_session, self._phase_mask = native_session, phase_mask
        self._head, self._prefill_rows = head, prefill_rows
        self._row_calls, self._by_width = row_calls, dict(by_width)
        self._raised = SECOND_LAYOUT if second_layout else 0
        self.interface = interface
        self.vocab_size = interface.vocab_size
        self.context_length = context_length
        self.max_queries = max_queries
        self.guard = guard or PhaseGuard()
        self._extents, self._segments = extents, segments
        self._device = "cuda" if spec.provider == "cuda" else "cpu"
        self._chained = chained
        self._buffers = Caches(interface.layers, segments, chained, max_queries, self._device, session)
        self._logits_dtype = logits_dtype(session, interface.logits)
        self._logits_elem = elem_type(self._logits_dtype)
        self._host, self._feeds = ort_device("cpu"), Feeds(interface)
        self._rows = np.empty((max_queries, interface.vocab_size), self._logits_dtype)
        self._rows_at = self._rows.ctypes.data
        self._length = 0

    @classmethod
    def from_bundle(
        cls, bundle: Bundle, spec: SessionSpec, row_calls: RowCalls | None = None, *, lean: bool = False
    ) -> BlockTarget:
        """The bundle's guarded graph in a session of its own, or its two straight-line graphs, which hold the weights
        twice, and those of each number of rows, where it has them and lean is not asked for. row_calls: row_calls.py.
        Raises BundleError for a bundle of layout gs, which GSTarget runs.
        """
        if bundle.manifest.layout == "gs":
            raise BundleError(f"{bundle.folder} is of layout gs: open it with open_target")
        straight = bundle.manifest.emission == "specialized"
        session = _open(bundle, "decoder.active.onnx" if straight else "decoder.onnx", spec)
        native_session = _open(bundle, "decoder.native.onnx", spec) if straight else None
        widths = widths_of(bundle.manifest.max_queries) if bundle.manifest.emission == "widths" and not lean else ()
        return cls(
            session,
            bundle.manifest.interface,
            spec,
            extents=bundle.extents,
            segments=bundle.manifest.segments,
            max_queries=bundle.manifest.max_queries,
            context_length=bundle.manifest.context_length,
            native_session=native_session,
            phase_mask=bundle.manifest.phase_mask,
            head=bundle.manifest.head,
            chained=frozenset(chain.layer for chain in bundle.manifest.chains),
            prefill_rows=target_prompt_rows(bundle.manifest),
            row_calls=row_calls,
            by_width={rows: _open(bundle, width_file(rows), spec) for rows in widths},
        )

    @classmethod
    def of_plan(
        cls,
        session: Any,
        frozen: Decoder,
        plan: RewritePlan,
        spec: SessionSpec,
        *,
        native_session: Any = None,
        prefill_rows: int | None = None,
        by_width: Mapping[int, Any] = MappingProxyType({}),
    ) -> BlockTarget:
        """Over the graphs of a plan that is in no bundle."""
        return cls(
            session,
            Interface.of(frozen.contract),
            spec,
            extents=plan.extents,
            segments=plan.segments,
            max_queries=plan.max_queries,
            context_length=frozen.context_length,
            native_session=native_session,
            phase_mask=plan.phase_mask,
            head=plan.head,
            chained=frozenset(chain.site.layer for chain in plan.chains),
            prefill_rows=prefill_rows,
            by_width=by_width,
        )

    def native(self, spec: SessionSpec) -> BlockTarget:
        """The same session run in the exported layout only, with a cache of its own: plain speculation, arm C_MQ.

        Its prompt is cut as this target's is, so that the two differ in the layout and in nothing else.
        """
        return self._sharing(spec, PhaseGuard(self.guard.role, native_only=True), self._prefill_rows)

    def draft(self, spec: SessionSpec, prefill_rows: int | None) -> BlockTarget:
        """The same session in the role of a draft model, with a cache of its own."""
        return self._sharing(spec, PhaseGuard(Role.DRAFT), prefill_rows)

    def second(self, spec: SessionSpec) -> BlockTarget:
        """The same session run in the second layout of a graph that holds two, with a cache of its own."""
        return self._sharing(spec, PhaseGuard(self.guard.role), self._prefill_rows, second_layout=True)

    def sibling(self, spec: SessionSpec) -> BlockTarget:
        """The same session in the same role and layout, with a cache of its own: its calls may run at the same time."""
        guard = PhaseGuard(self.guard.role, native_only=self.guard.native_only)
        return self._sharing(spec, guard, self._prefill_rows, second_layout=bool(self._raised))

    def watch(self, wrap: Callable[[Any, str], Any]) -> None:
        """Put `wrap(session, graph)` in the place of each session.

        graph: "guarded", or "active" and "native"; "row" of the session for rows alone, "rowsN" of that for N.

        Before the first call; targets that share the sessions are not touched.
        """
        straight = self._native_session is not None
        self.session = wrap(self.session, "active" if straight else "guarded")
        if straight:
            self._native_session = wrap(self._native_session, "native")
        if self._row_calls is not None:
            self._row_calls = RowCalls(wrap(self._row_calls.session, "row"), self.interface)
        self._by_width = {rows: wrap(session, f"rows{rows}") for rows, session in self._by_width.items()}

    def _sharing(
        self, spec: SessionSpec, guard: PhaseGuard, prefill_rows: int | None, *, second_layout: bool = False
    ) -> BlockTarget:
        return BlockTarget(
            self.session,
            self.interface,
            spec,
            extents=self._extents,
            segments=self._segments,
            max_queries=self.max_queries,
            context_length=self.context_length,
            guard=guard,
            native_session=self._native_session,
            phase_mask=self._phase_mask,
            head=self._head,
            chained=self._chained,
            prefill_rows=prefill_rows,
            second_layout=second_layout,
            row_calls=self._row_calls,
            by_width=self._by_width,
        )

    @property
    def length(self) -> int:
        return self._length

    @property
    def caches(self) -> Caches:
        return self._buffers

    def start(self, rows: int) -> None:
        self._length = 0
        self.guard.new_request()
        self._buffers.reserve(rows)
        if self._feeds.rows < self._buffers.capacity:
            self._feeds.reserve(self._buffers.capacity)

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        """The prompt in the calls that the recipe asks for, native layout where the phase mask says so.

        Last row of logits, (1, vocabulary).
        """
        with self.guard.at(Stage.PREFILL):
            for rows in calls(tokens, self._prefill_rows):
                logits = np.empty((1 if self._head == "asked" else len(rows), self.vocab_size), self._logits_dtype)
                self._call(rows, self._ends(len(rows)), logits, logits.ctypes.data)
        return logits[-1:].copy()

    def verify(self, tokens: Sequence[int]) -> np.ndarray:
        """Raises ValueError for more rows than the graph was made for."""
        if not 1 <= len(tokens) <= self.max_queries:
            raise ValueError(f"{len(tokens)} rows asked of a graph made for 1 to {self.max_queries}")
        logits = self._rows[: len(tokens)]
        with self.guard.at(Stage.CONTINUATION):
            self._call(tokens, self._ends(len(tokens)), logits, self._rows_at)
        return logits

    def rollback(self, length: int) -> None:
        if not 0 <= length <= self._length:
            raise ValueError(f"can't roll back from {self._length} to {length}")
        self._length = length

    def advance(self, rows: int) -> None:
        """Rows that another graph wrote behind the committed ones are committed, too (static_target.py)."""
        self._length += rows

    def cached(self, index: int) -> np.ndarray:
        """A copy of the committed rows of one buffer, (length, Hkv, d): layer 0 key, layer 0 value, layer 1 key, ..."""
        return self._buffers.read(index, self._length)

    def lend(self, session: Any, row: int) -> Any:
        """A binding of a draft's session with the caches in it, for a call that writes `row` (self_draft/drafter.py).

        Raises ValueError where that row is committed, or behind the caches' end.
        """
        if row < self._length:
            raise ValueError(f"row {row} is committed: a draft writes behind the target's {self._length} rows")
        return self._buffers.lend(session, row + 1)

    def _ends(self, rows: int) -> list[int]:
        """Where each value segment of a call ends. A call wider than a block reads the whole extent in all of them."""
        if rows > self.max_queries:
            return [self._length + rows] * self._segments
        return segment_extents(self._length, rows, self._extents, self._segments)

    def _call(self, tokens: Sequence[int], ends: list[int], logits: np.ndarray, address: int) -> None:
        """address: where `logits`, (rows asked for, vocabulary), lies."""
        past, full = self._length, ends[-1]
        if self._row_calls is not None and len(tokens) == 1:
            session, binding = self._row_calls.session, self._buffers.row_binding(self._row_calls, full)
            self._feeds.bind(binding, tokens, past, None, None)
        else:
            session, binding = self._layout_binding(tokens, ends)
            first = len(tokens) - len(logits) if self._head == "asked" else None
            self._feeds.bind(binding, tokens, past, first, self._phase(session))
        _, bind_output = raw_binders(binding)
        bind_output(self.interface.logits, self._host, self._logits_elem, (1, *logits.shape), address)
        session_run(session, binding)
        self._length = full

    def _layout_binding(self, tokens: Sequence[int], ends: list[int]) -> tuple[Any, Any]:
        """The rewritten graphs' session for a call in this phase, and its binding with the caches in it."""
        active = layout_active(Phase(self.guard.value), self._phase_mask)
        session = self.session if active or self._native_session is None else self._native_session
        if active:
            session = self._by_width.get(len(tokens), session)
        layout = (2 if self._raised else 1) if active else 0
        return session, self._buffers.binding(session, ends, len(tokens), layout)

    def _phase(self, session: Any) -> int | None:
        """What the phase input gets; None where the session's graph has none."""
        if self._native_session is not None or session is not self.session:
            return None
        return self.guard.value + (self._raised if self.guard.value else 0)


def _open(bundle: Bundle, graph: str, spec: SessionSpec) -> Any:
    return open_placed(bundle.graph(graph), spec, weights=bundle.weights)
