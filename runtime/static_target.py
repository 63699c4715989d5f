"""Verification calls of static shapes and addresses, which CUDA graphs can capture: off unless asked for.

Extents are bound by buckets, so a row reads masked keys behind its own. Whether its bits bear that is a matter of
kernels: a static target is made only where `static_trial` could not prove it wrong, and says its witness where it
could. On ONNX Runtime's CPU provider it is proven wrong for attention of separate products (a sum over zero-weighted
values is another sum at extents n % 4 = 3), and not for GroupQueryAttention, which is told its lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qbpass.models.errors import BundleError
from qbpass.models.session import SessionSpec, open_session
from qbpass.models.weight_sources import WeightSources
from qbpass.rewrites.apply import PAST_INPUT
from qbpass.rewrites.phases import Phase, layout_active
from qbpass.rewrites.static_graph import StaticGraph
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.buffers import GRANULE
from qbpass.runtime.element_types import logits_dtype
from qbpass.runtime.graph_cache import GraphCache, GraphKey
from qbpass.runtime.phase_guard import Stage
from qbpass.runtime.placed_session import open_placed
from qbpass.runtime.static_call import StaticCall


@dataclass(frozen=True)
class StaticSessions:
    """A static graph's two parts, opened once for any number of targets."""

    graph: StaticGraph
    device: Any
    host: Any  # None where nothing is to be computed before a call
    captures: bool

    @classmethod
    def open(cls, graph: StaticGraph, spec: SessionSpec, weights: WeightSources) -> StaticSessions:
        """Captures CUDA graphs on CUDA. Raises what open_placed does, ModelFileError for a graph that can't be captured
        among it.
        """
        captures = spec.provider == "cuda"
        device = open_placed(graph.device.SerializeToString(), replace(spec, capture=captures), weights=weights)
        host = None
        if graph.host is not None:
            host = open_session(graph.host.SerializeToString(), SessionSpec("cpu", threads=1))
        return cls(graph, device, host, captures)

    def release(self, graph_id: int) -> None:
        """A captured graph is wanted no more. Before ONNX Runtime 1.32 it stays until the session goes."""
        if hasattr(self.device, "release_captured_graph"):
            self.device.release_captured_graph(graph_id)


def bucket(extent: int, capacity: int) -> int:
    """The keys that are bound for a call of that extent: a power of two of granules, or all there are."""
    size = GRANULE
    while size < extent:
        size *= 2
    return min(size, capacity)


class StaticTarget:
    """A BlockTarget whose verification runs the static graph in its place, over the same cache.

    Prompts, and phases in which the layout is not active, run as they do there. Rows behind a call's own are read and
    masked, so they must hold numbers: zeros, or what earlier requests left. A rejected row that holds a NaN shows as
    NaN logits, an error, in calls that read it before it is written again.
    """

    def __init__(self, target: BlockTarget, sessions: StaticSessions, spec: SessionSpec, phase_mask: int):
        """phase_mask: the plan's, which the static graph stands for. Raises BundleError where it leaves out the
        verification.
        """
        if not layout_active(Phase.TARGET_CONTINUATION, phase_mask):
            raise BundleError(f"phase mask {phase_mask} leaves verification native: there is no layout to capture")
        self._target, self._sessions, self._spec, self._mask = target, sessions, spec, phase_mask
        self._device = "cuda" if spec.provider == "cuda" else "cpu"
        self.vocab_size, self.context_length = target.vocab_size, target.context_length
        self.max_queries, self.interface = target.max_queries, target.interface
        self.graphs: GraphCache[StaticCall] = GraphCache(dropped=sessions.release)
        self._inputs = {entry.name for entry in sessions.device.get_inputs()}
        dtype = logits_dtype(sessions.device, self.interface.logits)
        self._rows = np.empty((self.max_queries, self.vocab_size), dtype)
        self._numbers = False  # of the cache's rows: what lies in new memory may be anything

    @property
    def captures(self) -> bool:
        """Whether calls are captured as CUDA graphs."""
        return self._sessions.captures

    @property
    def length(self) -> int:
        return self._target.length

    @property
    def guard(self) -> Any:
        return self._target.guard

    def start(self, rows: int) -> None:
        caches = self._target.caches
        before = caches.capacity
        self._target.start(rows)
        if caches.capacity != before:
            self.graphs.clear()
        if caches.capacity != before or not self._numbers:
            caches.fill_with_zeros()
            self._numbers = True

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        return self._seen(self._target.prefill(tokens))

    def rollback(self, length: int) -> None:
        self._target.rollback(length)

    def cached(self, index: int) -> np.ndarray:
        return self._target.cached(index)

    def verify(self, tokens: Sequence[int]) -> np.ndarray:
        """Raises ValueError for more rows than the graph was made for, or than the cache has room for."""
        rows, past = len(tokens), self.length
        if not 1 <= rows <= self.max_queries:
            raise ValueError(f"{rows} rows asked of a graph made for 1 to {self.max_queries}")
        caches = self._target.caches
        if past + rows > caches.capacity:
            raise ValueError(f"{past + rows} rows asked of a cache of {caches.capacity}")
        with self.guard.at(Stage.CONTINUATION):
            if not layout_active(Phase(self.guard.value), self._mask):
                return self._target.verify(tokens)
            extent = bucket(past + rows, caches.capacity)
            arrays = self._arrays(tokens, past, extent)
            shapes = tuple(array.shape for array in arrays.values())
            key = GraphKey(self._sessions.device, 1, rows, extent, caches.capacity, shapes)
            kept = self.graphs.get(key, lambda: self._made(arrays, rows, extent))
            if self._sessions.captures:
                kept.value.capture(kept.graph_id)
            logits = self._rows[:rows]
            kept.value.run(arrays, logits)
            self._target.advance(rows)
        return self._seen(logits)

    def _seen(self, logits: np.ndarray) -> np.ndarray:
        """Rows that are no numbers may have left such keys and values: they are wiped before the next request."""
        self._numbers = self._numbers and not bool(np.isnan(logits).any())
        return logits

    def _made(self, arrays: dict[str, np.ndarray], rows: int, extent: int) -> StaticCall:
        session = self._sessions.device
        return StaticCall(
            session,
            arrays,
            (self.interface.logits, self._rows[:rows]),
            self._device,
            lambda binding: self._target.caches.bind_static(binding, session, extent, rows),
        )

    def _arrays(self, tokens: Sequence[int], past: int, extent: int) -> dict[str, np.ndarray]:
        """The small inputs of a call, in a fixed order."""
        names, rows = self.interface, len(tokens)
        arrays: dict[str | None, np.ndarray] = {
            names.input_ids: np.array([tokens], np.int64),
            names.attention_mask: (np.arange(extent) < past + rows).astype(np.int64)[None],
            names.position_ids: np.arange(past, past + rows, dtype=np.int64)[None],
            PAST_INPUT: np.array([past], np.int64),
        }
        given = {name: array for name, array in arrays.items() if name in self._inputs}
        return {name: array for name, array in given.items() if name is not None} | self._sizes(rows, past, extent)

    def _sizes(self, rows: int, past: int, extent: int) -> dict[str, np.ndarray]:
        """What the device reads of the arithmetic on sizes."""
        graph, host = self._sessions.graph, self._sessions.host
        if host is None:
            return {}
        feeds = {f"{name}.shape": np.array(graph.shape(name, rows, extent), np.int64) for name in graph.shapes}
        if graph.takes_past:
            feeds[PAST_INPUT] = np.array([past], np.int64)
        return dict(zip(graph.fed, host.run(list(graph.fed), feeds), strict=True))
