"""What a probe writes into an operand: drawn from a seed, of the kind the graph's own tensor was seen to be."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

Array = np.ndarray[Any, Any]

Kind = Literal["normal", "positive", "mask", "scores", "integers", "bits", "affine", "stored"]


class Fill(BaseModel):
    """How values are made.

    normal, positive: of deviation `scale`; mask: 0 where a row may look and `low` elsewhere; scores: normal under such
    a mask; integers: low .. high; bits: booleans, a causal mask where the tensor has rows and keys; affine: each
    element a sum of the call's rows and keys, `table` holding (rows, keys, fixed) for each; stored: `table` itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    scale: float = 1.0
    low: float = 0.0
    high: float = 0.0
    table: tuple[tuple[float, ...], ...] = ()

    @property
    def masks(self) -> bool:
        """Whether the tensor says which keys a row may look at."""
        return self.kind in ("mask", "scores")


NORMAL = Fill(kind="normal")


def draw(fill: Fill, shape: tuple[int, ...], dtype: np.dtype[Any], random: np.random.Generator) -> Array:
    """Values that need no axis of rows or keys to be known: of every kind but mask, scores, bits and affine."""
    if fill.kind == "integers":
        drawn: Array = random.integers(int(fill.low), int(fill.high), shape, dtype=dtype, endpoint=True)
        return drawn
    if fill.kind == "stored":
        return np.array(fill.table[0]).astype(dtype).reshape(shape)
    values = random.standard_normal(shape, dtype=np.float32) * np.float32(fill.scale)
    if fill.kind == "positive":
        values = np.abs(values) + np.float32(fill.scale) / 64  # away from 0, for logarithms and quotients
    return values.astype(dtype)


def causal(rows: int, keys: int) -> Array:
    """(rows, keys) bool: whether a row may look at a key, the last row being the last key's own."""
    allowed: Array = np.arange(keys)[None] <= np.arange(keys - rows, keys)[:, None]
    return allowed


def aligned(array: Array, boundary: int = 64) -> Array:
    """A contiguous copy that starts at a cache line, as ONNX Runtime's own tensors do: numpy's begin anywhere."""
    raw = np.empty(array.nbytes + boundary, np.uint8)
    offset = -raw.ctypes.data % boundary
    placed: Array = raw[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
    placed[...] = array
    return placed
