"""Reads com.microsoft MultiHeadAttention.

Source: onnxruntime/core/graph/contrib_ops/bert_defs.cc, MultiHeadAttention (schema of ONNX Runtime 1.32).
"""

from __future__ import annotations

from qbpass.admission.fused.fused_node import FusedNode, shared
from qbpass.admission.fused.reading import Reading, score_scale, switched_on

_OPERANDS = (
    *("q", "k", "v", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value", "past_sequence_length"),
    "cache_indirection",
)
_RESULTS = ("output", "present_key", "present_value", "qk")


def read_mha(node: FusedNode) -> Reading:
    """In one of these forms, H heads each:

    1. Q (1, q, H*d), K (1, rows, H*d), V (1, rows, H*dv);
    2. Q (1, q, H*d), K (1, H, rows, d), V (1, H, rows, dv): whole keys and values, another stream's or joined before;
    3. Q (1, q, H*d), K and V packed (1, rows, H, 2, d);
    4. Q, K and V packed (1, q, H, 3, d).
    """
    parts = node.named(_OPERANDS, _RESULTS)
    heads = node.count("num_heads")
    packed_qkv, packed_kv = node.rank(parts.get("q")) == 5, node.rank(parts.get("k")) == 5
    head_dim = node.dim(parts.get("q"), -1) if packed_qkv else shared(node.dim(parts.get("q"), -1), heads)
    value_dim = head_dim if packed_qkv or packed_kv else _value_dim(node, parts.get("v"), heads)
    first = "packed_qkv" if packed_qkv else "q"
    _rename(parts, "q", first)
    _rename(parts, "k", "packed_kv" if packed_kv else "k")
    causal = node.flag("unidirectional")
    return Reading(
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        value_dim=value_dim,
        scale=score_scale(node.number("scale"), head_dim),
        tensors=parts,
        features={
            "unidirectional": causal,
            **switched_on(
                packed_qkv=packed_qkv,
                packed_kv=packed_kv,
                projection_bias="bias" in parts,
                mask_filter_value=node.number("mask_filter_value"),
                past_present_share_buffer="past_sequence_length" in parts,
            ),
        },
        causal=causal,
        added="attention_bias" if "attention_bias" in parts else None,
        key_mask="key_padding_mask" if "key_padding_mask" in parts else None,
        rows=(first, 1),
        batch=tuple((part, 0) for part in (first, "k", "v", "past_key", "past_value") if part in parts),
    )


def _value_dim(node: FusedNode, value: str | None, heads: int | None) -> int | None:
    width = node.dim(value, -1)
    return width if node.rank(value) == 4 else shared(width, heads)


def _rename(parts: dict[str, str], old: str, new: str) -> None:
    if old in parts:
        parts[new] = parts.pop(old)
