"""KV buffers on the provider's device: one allocation a layer and part, bound by prefix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qbpass.rewrites.kv_cache import cache_name, segment_name, updated_name
from qbpass.rewrites.manifest import CacheLayer
from qbpass.runtime.addresses import elem_type, ort_device, raw_binders
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
        self._bound: list[tuple[str, str, tuple[str, ...], int, int, int, int]] = []
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
        # What a call needs of each part, worked out once: a call binds every one of them.
        self._bound = [
            (p.source, p.target, p.segments, p.heads, p.width, elem_type(p.dtype), value.data_ptr())
            for p, value in zip(self._parts, self._values, strict=True)
        ]

    @property
    def values(self) -> list[Any]:
        """The buffers themselves, as ONNX Runtime's values."""
        return list(self._values)

    def bind(self, binding: Any, extents: list[int]) -> None:
        """Bind rows [0, extents[-1]) as cache in and out, and the shorter prefixes as value segments."""
        full = extents[-1]
        if full > self.capacity:
            raise ValueError(f"{full} rows asked of a cache of {self.capacity}")
        device = self._device_of_ort
        bind_input, bind_output = raw_binders(binding)
        for source, target, segments, heads, width, elem, pointer in self._bound:
            shape = (full, heads, width)
            bind_input(source, device, elem, shape, pointer)
            bind_output(target, device, elem, shape, pointer)
            for name, extent in zip(segments, extents, strict=False):
                bind_input(name, device, elem, (extent, heads, width), pointer)

    def bind_whole(self, binding: Any, rows: int) -> None:
        """Bind rows [0, rows) as cache in and out, for a graph that takes no segments."""
        if rows > self.capacity:
            raise ValueError(f"{rows} rows asked of a cache of {self.capacity}")
        device = self._device_of_ort
        bind_input, bind_output = raw_binders(binding)
        for source, target, _, heads, width, elem, pointer in self._bound:
            bind_input(source, device, elem, (rows, heads, width), pointer)
            bind_output(target, device, elem, (rows, heads, width), pointer)

    def read(self, index: int, rows: int) -> np.ndarray:
        """A copy of the first `rows` rows of buffer `index` (layer 0 key, layer 0 value, layer 1 key, ...)."""
        copy: np.ndarray = self._values[index].numpy()[:rows].copy()
        return copy


def _parts(layer: CacheLayer, segments: int, dtypes: dict[str, np.dtype[Any]]) -> tuple[_Part, _Part]:
    def part(kind: str, width: int) -> _Part:
        source = cache_name(layer.layer, kind)
        prefixes = tuple(segment_name(layer.layer, s, kind) for s in range(segments - 1))
        prefixes = tuple(name for name in prefixes if name in dtypes)  # keys have prefixes only where they are clipped
        return _Part(source, updated_name(layer.layer, kind), prefixes, layer.kv_heads, width, dtypes[source])

    return part("key", layer.key_dim), part("value", layer.value_dim)
