"""KV buffers that fused operators append to in place: past and present are one memory, (1, Hkv, capacity, d).

Source: onnxruntime/contrib_ops/cpu/bert/gqa_attention_base.h (past_present_share_buffer): the operator is told by its
lengths how much of the buffer is the past, and writes its rows behind that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qbpass.models.contract import KVPair
from qbpass.rewrites.chains.cache import link_cache_name, link_updated_name
from qbpass.rewrites.kv_cache import numpy_dtype
from qbpass.rewrites.manifest import CacheLayer
from qbpass.runtime.buffers import GRANULE


@dataclass(frozen=True)
class SharedPart:
    """One buffer of (1, heads, capacity, width). names: (graph input, graph output) of each link that is given it."""

    names: tuple[tuple[str, str], ...]
    heads: int
    width: int
    dtype: np.dtype[Any]


def chained_parts(layers: Iterable[CacheLayer], links: int) -> list[SharedPart]:
    """Of chained sites (rewrites/chains/cache.py): key, value, key, value, ..."""
    return [
        SharedPart(
            tuple(
                (link_cache_name(layer.layer, kind, n), link_updated_name(layer.layer, kind, n)) for n in range(links)
            ),
            layer.kv_heads,
            width,
            numpy_dtype(layer.elem_type),
        )
        for layer in layers
        for kind, width in (("key", layer.key_dim), ("value", layer.value_dim))
    ]


def exported_parts(pairs: Iterable[KVPair]) -> list[SharedPart]:
    """Of a graph as exported, whose operators all append in place: past and present, in layer order."""
    return [
        SharedPart(((past, present),), pair.kv_heads, width, numpy_dtype(pair.elem_type))
        for pair in pairs
        for past, present, width in (
            (pair.past_key, pair.present_key, pair.key_dim),
            (pair.past_value, pair.present_value, pair.value_dim),
        )
    ]


class SharedCache:
    """Every part's buffer, and a row of scratch for links that a call does not need.

    Rows below the caller's counter are valid; the rest is scratch, too.
    """

    def __init__(self, parts: list[SharedPart], device: str):
        self.device, self.parts = device, parts
        self.capacity = 0
        self._values: list[Any] = []
        self._spare: list[Any] = []

    def reserve(self, rows: int) -> bool:
        """Room for `rows` positions; True where the memory is another now, and what was bound to it is void.

        Growing throws the contents away: call it before a request starts.
        """
        if rows <= self.capacity:
            return False
        self.capacity = -(-rows // GRANULE) * GRANULE
        self._values = []  # the old buffers go first, or both would be resident
        self._values = [self._allocate(part, self.capacity) for part in self.parts]
        self._spare = self._spare or [self._allocate(part, 1) for part in self.parts]
        return True

    def bind(self, binding: Any, links: int, inputs: Collection[str]) -> None:
        """Give the first `links` links the buffers, and the others scratch. Holds until the memory changes.

        inputs: of the graph, which need not have every link.
        """
        for part, value, spare in zip(self.parts, self._values, self._spare, strict=True):
            for number, (source, target) in enumerate(part.names):
                if source not in inputs:
                    continue
                chosen, rows = (value, self.capacity) if number < links else (spare, 1)
                shape = (1, part.heads, rows, part.width)
                pointer = chosen.data_ptr()
                binding.bind_input(source, self.device, 0, part.dtype, shape, pointer)
                binding.bind_output(target, self.device, 0, part.dtype, shape, pointer)

    def bind_as(self, binding: Any, names: Sequence[tuple[str, str]]) -> None:
        """Give the buffers, in their order, to these (input, output) of another graph. Holds as `bind` does."""
        for part, value, (source, target) in zip(self.parts, self._values, names, strict=True):
            shape, pointer = (1, part.heads, self.capacity, part.width), value.data_ptr()
            binding.bind_input(source, self.device, 0, part.dtype, shape, pointer)
            binding.bind_output(target, self.device, 0, part.dtype, shape, pointer)

    @property
    def values(self) -> list[Any]:
        """The buffers themselves, as ONNX Runtime's values."""
        return list(self._values)

    def read(self, index: int, rows: int) -> np.ndarray:
        """A copy of the first `rows` rows of buffer `index` as (rows, Hkv, d)."""
        copy: np.ndarray = np.ascontiguousarray(self._values[index].numpy()[0, :, :rows].transpose(1, 0, 2))
        return copy

    def _allocate(self, part: SharedPart, rows: int) -> Any:
        import onnxruntime as ort

        shape = (1, part.heads, rows, part.width)
        return ort.OrtValue.ortvalue_from_shape_and_type(shape, part.dtype, self.device, 0)
