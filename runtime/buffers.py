"""KV buffers on the provider's device: one allocation a layer and part, bound by prefix."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np

from qbpass.rewrites.kv_cache import cache_name, segment_name, updated_name
from qbpass.rewrites.manifest import CacheLayer
from qbpass.runtime.addresses import Binder, elem_type, ort_device, raw_binders
from qbpass.runtime.element_types import cache_dtypes

#: Capacities are multiples of this many rows, so that a slightly longer request reuses the buffers.
GRANULE = 256


@dataclass(frozen=True)
class _Part:
    """One buffer (capacity, heads, width) and the graph names bound to it."""

    source: str
    target: str
    segments: tuple[str, ...]
    heads: int
    width: int
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class _Group:
    """Parts of one row shape, element type and number of segments: what a call binds, worked out once.

    segments[s]: the names of segment s. All names are in the order of `pointers`.
    """

    row: tuple[int, int]
    elem: int
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    segments: tuple[tuple[str, ...], ...]
    pointers: tuple[int, ...]


class KVBuffers:
    """Every layer's key and value buffer. Rows below the caller's counter are valid; the rest is scratch.

    Rolling back is the caller moving its counter: rows behind it are overwritten by the next call.
    """

    def __init__(self, layers: tuple[CacheLayer, ...], segments: int, device: str, session: Any):
        """session: one that takes these caches; it says their types."""
        self.device = device
        self.capacity = 0
        dtypes = cache_dtypes(session)
        self._parts = [part for layer in layers for part in _parts(layer, segments, dtypes)]
        self._values: list[Any] = []
        self._groups: list[_Group] = []
        self._device_of_ort = ort_device(device)

    def reserve(self, rows: int) -> None:
        """Room for `rows` positions. Growing throws the contents away: call it before a request starts."""
        import onnxruntime as ort

        if rows <= self.capacity:
            return
        self.capacity = -(-rows // GRANULE) * GRANULE
        self._values = []  # the old buffers go first, or both would be resident
        self._values = [
            ort.OrtValue.ortvalue_from_shape_and_type((self.capacity, p.heads, p.width), p.dtype, self.device, 0)
            for p in self._parts
        ]
        self._groups = _groups(self._parts, [value.data_ptr() for value in self._values])

    @property
    def values(self) -> list[Any]:
        """The buffers themselves, as ONNX Runtime's values."""
        return list(self._values)

    def bind(self, binding: Any, extents: list[int]) -> None:
        """Bind rows [0, extents[-1]) as cache in and out, and the shorter prefixes as value segments."""
        self.bind_whole(binding, extents[-1])
        bind_input, _ = raw_binders(binding)
        for group in self._groups:
            for names, extent in zip(group.segments, extents, strict=False):
                self._bind_each(bind_input, group, names, (extent, *group.row))

    def bind_whole(self, binding: Any, rows: int) -> None:
        """Bind rows [0, rows) as cache in and out, for a graph that takes no segments."""
        if rows > self.capacity:
            raise ValueError(f"{rows} rows asked of a cache of {self.capacity}")
        bind_input, bind_output = raw_binders(binding)
        for group in self._groups:
            shape = (rows, *group.row)
            self._bind_each(bind_input, group, group.sources, shape)
            self._bind_each(bind_output, group, group.targets, shape)

    def _bind_each(self, bind: Binder, group: _Group, names: tuple[str, ...], shape: tuple[int, ...]) -> None:
        """A loop that the interpreter does not run: this is most of what a call costs outside ONNX Runtime."""
        device, elem = repeat(self._device_of_ort), repeat(group.elem)
        deque(map(bind, names, device, elem, repeat(shape), group.pointers), maxlen=0)

    def read(self, index: int, rows: int) -> np.ndarray:
        """A copy of the first `rows` rows of buffer `index` (layer 0 key, layer 0 value, layer 1 key, ...)."""
        copy: np.ndarray = self._values[index].numpy()[:rows].copy()
        return copy


def _groups(parts: list[_Part], pointers: list[int]) -> list[_Group]:
    kinds: dict[tuple[tuple[int, int], int, int], list[tuple[_Part, int]]] = {}
    for part, pointer in zip(parts, pointers, strict=True):
        kind = ((part.heads, part.width), elem_type(part.dtype), len(part.segments))
        kinds.setdefault(kind, []).append((part, pointer))
    return [
        _Group(
            row,
            elem,
            tuple(part.source for part, _ in members),
            tuple(part.target for part, _ in members),
            tuple(tuple(part.segments[s] for part, _ in members) for s in range(segments)),
            tuple(pointer for _, pointer in members),
        )
        for (row, elem, segments), members in kinds.items()
    ]


def _parts(layer: CacheLayer, segments: int, dtypes: dict[str, np.dtype[Any]]) -> tuple[_Part, _Part]:
    def part(kind: str, width: int) -> _Part:
        source = cache_name(layer.layer, kind)
        prefixes = tuple(segment_name(layer.layer, s, kind) for s in range(segments - 1))
        prefixes = tuple(name for name in prefixes if name in dtypes)  # keys have prefixes only where they are clipped
        return _Part(source, updated_name(layer.layer, kind), prefixes, layer.kv_heads, width, dtypes[source])

    return part("key", layer.key_dim), part("value", layer.value_dim)
