"""The cache of a chained site: one buffer (1, Hkv, capacity, d) that every link is given as past and as present.

com.microsoft GroupQueryAttention appends in place where its past and its present are the same memory, and copies
otherwise. Memory can be bound to a graph's inputs and outputs alone, so each link has its own. The links that a call
does not need are bound to a scratch buffer of one row.

Source: onnxruntime/contrib_ops/cpu/bert/gqa_attention_base.h (past_present_share_buffer).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx_graphsurgeon as gs

from qbpass.admission.fused_site import FusedSite
from qbpass.rewrites.kv_cache import numpy_dtype


def link_cache_name(layer: int, part: str, link: int) -> str:
    """Graph input: the memory that a link reads, `part` key | value: (1, Hkv, capacity, d)."""
    return f"cache.{layer}.{part}.link{link}"


def link_updated_name(layer: int, part: str, link: int) -> str:
    """Graph output: the same memory, with the link's rows written."""
    return f"cache_out.{layer}.{part}.link{link}"


@dataclass(frozen=True)
class LinkCache:
    """One link's tensors."""

    key_in: Any
    value_in: Any
    key: Any
    value: Any

    @property
    def inputs(self) -> list[Any]:
        return [self.key_in, self.value_in]

    @property
    def outputs(self) -> list[Any]:
        return [self.key, self.value]


def declare_link(site: FusedSite, link: int) -> LinkCache:
    """The graph inputs and outputs of one link. Links of one call may have buffers of different capacity."""
    dtype, rows = numpy_dtype(site.elem_type), f"capacity_{link}"

    def variable(name: str, width: int) -> gs.Variable:
        return gs.Variable(name, dtype=dtype, shape=[1, site.kv_heads, rows, width])

    return LinkCache(
        key_in=variable(link_cache_name(site.layer, "key", link), site.head_dim),
        value_in=variable(link_cache_name(site.layer, "value", link), site.value_dim),
        key=variable(link_updated_name(site.layer, "key", link), site.head_dim),
        value=variable(link_updated_name(site.layer, "value", link), site.value_dim),
    )
