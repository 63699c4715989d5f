"""What a decoder's graph takes and gives: token ids, mask, positions, KV pairs, logits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KVPair:
    """One layer's KV cache as the export has it.

    Past (1, kv_heads, past, head_dim) in, present (1, kv_heads, n, head_dim) out.
    """

    layer: int
    past_key: str
    past_value: str
    present_key: str
    present_value: str
    kv_heads: int
    key_dim: int
    value_dim: int
    elem_type: int  # onnx.TensorProto.DataType


@dataclass(frozen=True)
class DecoderContract:
    """Names of a decoder's inputs and outputs. Found by dataflow, never by name."""

    input_ids: str  # (1, q) int64
    attention_mask: str | None  # (1, n) int64
    position_ids: str | None  # (1, q) int64
    logits: str  # (1, q, vocabulary)
    kv: tuple[KVPair, ...]  # in layer order
    vocab_size: int
