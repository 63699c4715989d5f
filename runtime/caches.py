"""Every layer's cache of a rewritten decoder, whichever form it has: bound by prefix, or shared by a chain's links."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from qbpass.rewrites.manifest import CacheLayer
from qbpass.runtime.buffers import KVBuffers
from qbpass.runtime.element_types import numpy_type
from qbpass.runtime.graph_cache import GraphCache, GraphKey
from qbpass.runtime.row_calls import RowCalls
from qbpass.runtime.shared_cache import SharedCache, chained_parts


class Caches:
    """Rows below the caller's counter are valid; rolling back is the caller moving its counter."""

    def __init__(
        self,
        layers: tuple[CacheLayer, ...],
        segments: int,
        chained: Collection[int],
        links: int,
        device: str,
        session: Any,
    ):
        """chained: layers whose attention is a chain of up to `links` operators; session: one that takes the caches."""
        prefixed = tuple(layer for layer in layers if layer.layer not in chained)
        shared = tuple(layer for layer in layers if layer.layer in chained)
        self._prefixed = KVBuffers(prefixed, segments, device, session) if prefixed else None
        self._shared = SharedCache(chained_parts(shared, links), device) if shared else None
        self._places = [(layer in shared, part) for layer in layers for part in range(2)]
        self.graphs: GraphCache[Any] = GraphCache()  # bindings over the shared buffers
        # Session -> its binding where caches are bound by prefix: one, whose every name is bound anew in every call.
        # Names that are there already cost half of what new ones do.
        self._rebound: dict[Any, Any] = {}

    def reserve(self, rows: int) -> None:
        """Room for `rows` positions. Growing throws the contents away: call it before a request starts."""
        if self._prefixed is not None:
            self._prefixed.reserve(rows)
        if self._shared is not None and self._shared.reserve(rows):
            self.graphs.clear()

    def binding(self, session: Any, ends: list[int], rows: int, layout: int) -> Any:
        """The binding of a call of `rows` rows with the caches in it: rows [0, ends[-1]) and value segments.

        layout: the call's flag, 0 where it runs in the native layout: then a chain's first link holds all its rows,
        else each row has one. Where every cache is shared the binding is kept: shapes and addresses stay the same from
        call to call.
        """
        if self._shared is not None and ends[-1] > self._shared.capacity:
            raise ValueError(f"{ends[-1]} rows asked of a cache of {self._shared.capacity}")
        if self._prefixed is None and self._shared is not None:
            key = GraphKey(session, layout, rows, 0, self._shared.capacity)
            return self.graphs.get(key, lambda: self._bound(session, ends, rows, layout)).value
        return self._bound(session, ends, rows, layout)

    def row_binding(self, rows: RowCalls, full: int) -> Any:
        """The binding of a call of one row of the frozen graph, which reaches row `full` - 1. Every cache is shared."""
        assert self._shared is not None
        if full > self._shared.capacity:
            raise ValueError(f"{full} rows asked of a cache of {self._shared.capacity}")
        key, shared = GraphKey(rows.session, 0, 1, 0, self._shared.capacity), self._shared
        return self.graphs.get(key, lambda: rows.binding(shared)).value

    def _bound(self, session: Any, ends: list[int], rows: int, layout: int) -> Any:
        if self._prefixed is None:
            binding = session.io_binding()
        else:
            binding = self._rebound.get(session)
            if binding is None:
                binding = self._rebound[session] = session.io_binding()
            self._prefixed.bind(binding, ends)
        if self._shared is not None:
            self._shared.bind(binding, rows if layout else 1, _names(session))
        return binding

    def bind_static(self, binding: Any, session: Any, extent: int, rows: int) -> None:
        """For a static graph of the layout: rows [0, extent) of what is bound by prefix, a link for each of `rows`."""
        if self._prefixed is not None:
            self._prefixed.bind_whole(binding, extent)
        if self._shared is not None:
            self._shared.bind(binding, rows, _names(session))

    def lend(self, session: Any, rows: int) -> Any:
        """The binding of a graph that evaluates row `rows` - 1 alone, without segments and with one link a chain."""
        if rows > self.capacity:
            raise ValueError(f"{rows} rows asked of a cache of {self.capacity}")
        if self._prefixed is None:
            return self.binding(session, [rows], 1, 0)
        if session not in self._rebound:
            self._rebound[session] = session.io_binding()
        self.bind_static(self._rebound[session], session, rows, 1)
        return self._rebound[session]

    def fill_with_zeros(self) -> None:
        """For readers of rows that nothing was written to: a masked NaN is a NaN still."""
        for value in self.values:
            value.update_inplace(np.zeros(value.shape(), numpy_type(value)))

    def read(self, index: int, rows: int) -> np.ndarray:
        """A copy of the first `rows` rows, (rows, Hkv, d), of layer 0's key, layer 0's value, layer 1's key, ..."""
        shared = self._places[index][0]
        number = sum(place[0] == shared for place in self._places[:index])
        cache = self._shared if shared else self._prefixed
        assert cache is not None
        return cache.read(number, rows)

    @property
    def capacity(self) -> int:
        return max(cache.capacity for cache in (self._prefixed, self._shared) if cache is not None)

    @property
    def values(self) -> list[Any]:
        """The buffers themselves, as ONNX Runtime's values: those bound by prefix first."""
        return [value for cache in (self._prefixed, self._shared) if cache is not None for value in cache.values]


def _names(session: Any) -> frozenset[str]:
    """A straight-line graph of the native layout has one link."""
    return frozenset(entry.name for entry in session.get_inputs())
