"""What a decoder's graph takes and gives where qbpass can run it: token ids, mask, positions, KV pairs, logits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CachePair:
    """One layer's self-attention cache as the graph has it, complete or not.

    None stands for what the graph does not have (a past that it never takes) or does not say (a symbolic head
    dimension). Where one tensor holds keys and values, the key's name and the value's are the same.
    """

    layer: int
    past_key: str | None
    past_value: str | None
    present_key: str | None
    present_value: str | None
    kv_heads: int | None
    key_dim: int | None
    value_dim: int | None
    elem_type: int  # onnx.TensorProto.DataType


@dataclass(frozen=True)
class KVPair(CachePair):
    """One layer's KV cache, complete.

    Past (1, kv_heads, past, head_dim) in, present (1, kv_heads, n, head_dim) out.
    """

    past_key: str
    past_value: str
    present_key: str
    present_value: str
    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class DecoderContract:
    """Names of a decoder's inputs and outputs. Found by dataflow, never by name."""

    input_ids: str  # (1, q) int64
    attention_mask: str | None  # (1, n) int64
    position_ids: str | None  # (1, q) int64
    logits: str  # (1, q, vocabulary)
    kv: tuple[KVPair, ...]  # in layer order
    vocab_size: int
