"""A fused attention that can be evaluated query by query: one operator that holds a whole attention and its cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class FusedSite:
    """One fused operator over one layer's KV cache, by tensor names.

    Shapes: past and present (1, Hkv, n, d) and (1, Hkv, n, dv), which the operator can also be given as one buffer
    (1, Hkv, capacity, d); output (1, q, H*dv). seqlens_k (1,) int32 holds n - 1, total (1,) or () int32 holds n.
    row_axes: operand place -> axis of the call's q rows; key_axes: operand place -> axis of the n keys.
    """

    name: str
    kind: str  # "gqa"
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    elem_type: int  # onnx.TensorProto.DataType of the cache
    node: str  # the operator's first output tensor: unique in a graph in SSA form
    operator: str  # domain::name
    output: str
    past_key: str
    past_value: str
    present_key: str
    present_value: str
    seqlens_k: str
    total: str
    row_axes: Mapping[int, int] = field(hash=False)
    key_axes: Mapping[int, int] = field(hash=False)
    # Operand places of what the chain replaces.
    past_key_at: int = 3
    past_value_at: int = 4
    seqlens_k_at: int = 5
    total_at: int = 6
    cosines_at: int = 7  # (positions, rotary width / 2), where the operator rotates
    sines_at: int = 8
    positions_at: int = 9  # int64 (1, q), where the operator is told positions
