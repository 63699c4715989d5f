"""Random operands of a fused operator for every position, and how a call of some rows is fed with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from qbpass.admission.original import FusedOriginal
from qbpass.admission.site import AttentionSite
from qbpass.rewrites.cut import causal_mask
from qbpass.rewrites.kv_cache import numpy_dtype

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FusedOperands:
    """rows: part -> the operand's rows at every position, in the operator's own shape. key_nHD, value_nHD: a cache that
    reaches to the last position; where the operator appends, rows are put in as serial calls give them out.
    """

    rows: Mapping[str, Array]
    key_nHD: Array
    value_nHD: Array


def random_fused_operands(site: AttentionSite, extent: int, seed: int) -> FusedOperands:
    """Normal operands for every position below `extent`."""
    original = fused_of(site)
    rng = np.random.default_rng(seed)
    dtype = numpy_dtype(site.elem_type)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape, dtype=np.float32).astype(dtype)

    rows = {}
    for part, heads, width in (
        ("q", site.heads, site.head_dim),
        ("k", original.kv_heads, site.head_dim),
        ("v", original.kv_heads, site.value_dim),
        ("packed_qkv", site.heads + 2 * original.kv_heads, site.head_dim),
    ):
        if part in original.parts and (part not in ("k", "v") or original.appends):
            by_head = normal(1, heads, extent, width)
            rows[part] = flattened(by_head) if original.row_axis(part) == 1 else by_head
    shape = (extent, site.kv_heads)
    return FusedOperands(rows, normal(*shape, site.head_dim), normal(*shape, site.value_dim))


def call_feeds(site: AttentionSite, operands: FusedOperands, past: int, queries: int) -> dict[str, Array]:
    """By tensor name, what the fused operator reads in a call of rows past .. past + q - 1; weights are left out."""
    original, extent = fused_of(site), past + queries
    feeds: dict[str, Array] = {}
    for part, tensor in original.parts.items():
        if part in operands.rows:
            chosen = np.arange(past, extent)
            feeds[tensor] = np.take(operands.rows[part], chosen, axis=original.row_axis(part))
        elif part in ("k", "v"):
            feeds[tensor] = _whole(site, operands.key_nHD if part == "k" else operands.value_nHD, extent, part)
        elif part in ("past_key", "past_value"):
            feeds[tensor] = in_heads((operands.key_nHD if part == "past_key" else operands.value_nHD)[:past])
        elif part in ("mask", "attention_bias"):
            feeds[tensor] = _mask(original.types[tensor], past, queries)
        elif part in _COUNTS:
            feeds[tensor] = _COUNTS[part](past, queries)
    return feeds


_COUNTS: Mapping[str, Callable[[int, int], Array]] = {
    "seqlens_k": lambda past, queries: np.array([past + queries - 1], np.int32),
    "total_sequence_length": lambda past, queries: np.array(past + queries, np.int32),
    "position_ids": lambda past, queries: np.arange(past, past + queries, dtype=np.int64)[None],
}


def in_heads(rows_nHD: Array) -> Array:
    """(n, H, d) -> (1, H, n, d)."""
    return np.ascontiguousarray(rows_nHD.transpose(1, 0, 2)[None])


def flattened(by_head: Array) -> Array:
    """(1, H, n, d) -> (1, n, H*d)."""
    _, heads, rows, width = by_head.shape
    return np.ascontiguousarray(by_head.transpose(0, 2, 1, 3).reshape(1, rows, heads * width))


def fused_of(site: AttentionSite) -> FusedOriginal:
    if site.fused is None:
        raise ValueError(f"{site.name} was never a fused operator")
    return site.fused


def _whole(site: AttentionSite, cache_nHD: Array, extent: int, part: str) -> Array:
    """Keys or values that were joined, and repeated, before the operator."""
    original = fused_of(site)
    repeated = np.repeat(in_heads(cache_nHD[:extent]), original.kv_heads // site.kv_heads, axis=1)
    return flattened(repeated) if original.row_axis(part) == 1 else repeated


def _mask(kind: int, past: int, queries: int) -> Array:
    if kind == TensorProto.BOOL:
        allowed: Array = np.equal(causal_mask(past, queries, np.dtype(np.float32)), 0)
        return allowed
    return causal_mask(past, queries, np.dtype(helper.tensor_dtype_to_np_dtype(kind)))
