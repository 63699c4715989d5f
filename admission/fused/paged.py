"""Reads the com.microsoft operators of GroupQueryAttention's form that read a part of the cache, or one in blocks.

Source: onnxruntime/core/graph/contrib_ops/bert_defs.cc (schemas of ONNX Runtime 1.32).
"""

from __future__ import annotations

from collections.abc import Sequence

from qbpass.admission.fused.fused_node import FusedNode
from qbpass.admission.fused.gqa import head_dims, quantization, window
from qbpass.admission.fused.reading import Reading, score_scale, switched_on

_PAGED = (
    *("q", "k", "v", "key_cache", "value_cache", "cumulative_sequence_length", "past_seqlens", "block_table"),
    *("cos_cache", "sin_cache", "slot_mapping", "head_sink", "q_norm_weight", "k_norm_weight", "k_scale", "v_scale"),
    "attention_metadata",
)
_SPARSE_PAGED = (
    *("q", "k", "v", "key_cache", "value_cache", "cumulative_sequence_length", "past_seqlens", "block_table"),
    *("slot_mapping", "selected_indices", "selected_counts", "auxiliary_key", "auxiliary_value", "auxiliary_lengths"),
    *("cos_cache", "sin_cache", "head_sink", "q_norm_weight", "k_norm_weight", "k_scale", "v_scale"),
    "attention_metadata",
)
_SPARSE = (
    *("q", "k", "v", "past_key", "past_value", "block_row_indices", "block_col_indices", "total_sequence_length"),
    *("key_total_sequence_lengths", "cos_cache", "sin_cache"),
)
_DYNAMIC_SPARSE = (
    *("q", "k", "v", "past_key", "past_value", "auxiliary_key", "auxiliary_value", "selected_indices"),
    *("selected_counts", "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache", "position_ids"),
    *("q_norm_weight", "k_norm_weight", "head_sink", "committed_length", "k_scale", "v_scale"),
)
_CACHE_RESULTS = ("output", "key_cache_out", "value_cache_out")
_PRESENT_RESULTS = ("output", "present_key", "present_value")
_OF_TOKENS = "takes the tokens of several streams packed behind each other"


def read_paged_attention(node: FusedNode) -> Reading:
    """Q (tokens, H*d), K and V (tokens, Hkv*d), or packed; caches (blocks, block size, Hkv, d), in no order of rows."""
    return _read(node, _PAGED, _CACHE_RESULTS, of_tokens=True)


def read_sparse_paged_attention(node: FusedNode) -> Reading:
    """As PagedAttention, over the keys that another operator selected for each query."""
    return _read(node, _SPARSE_PAGED, _CACHE_RESULTS, of_tokens=True)


def read_sparse_attention(node: FusedNode) -> Reading:
    """Q, K and V as GroupQueryAttention's; caches (1, Hkv, capacity, d), of which each head reads blocks of keys."""
    return _read(node, _SPARSE, _PRESENT_RESULTS, of_tokens=False)


def read_dynamic_sparse_attention(node: FusedNode) -> Reading:
    """Q, K and V as GroupQueryAttention's, over the keys that another operator selected for each query."""
    return _read(node, _DYNAMIC_SPARSE, _PRESENT_RESULTS, of_tokens=False)


def _read(node: FusedNode, operands: Sequence[str], results: Sequence[str], of_tokens: bool) -> Reading:
    parts = node.named(operands, results)
    heads, kv_heads = node.count("num_heads"), node.count("kv_num_heads")
    latent = node.text("kv_cache_layout") == "LATENT"
    packed = "k" not in parts
    head_dim, value_dim = head_dims(node, parts, heads, kv_heads)
    if latent or node.count("v_head_size"):
        value_dim = node.count("v_head_size") or head_dim
    first = "packed_qkv" if packed else "q"
    if packed and "q" in parts:
        parts["packed_qkv"] = parts.pop("q")
    causal = node.flag("is_causal", default=True)
    return Reading(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        scale=score_scale(node.number("scale"), head_dim),
        tensors=parts,
        features={"is_causal": causal, **_features(node, parts, packed)},
        causal=causal,
        window=window(node),
        rows=None if of_tokens else (first, 1),
        other_rows=_OF_TOKENS if of_tokens else None,
        batch=() if of_tokens else tuple((part, 0) for part in (first, "past_key", "past_value") if part in parts),
    )


def _features(node: FusedNode, parts: dict[str, str], packed: bool) -> dict[str, object]:
    bounded = window(node)
    return {
        **switched_on(
            packed_qkv=packed,
            do_rotary=node.flag("do_rotary"),
            rotary_interleaved=node.flag("rotary_interleaved"),
            rotary_offset=node.integer("rotary_offset"),
            qk_norm="q_norm_weight" in parts,
            softcap=node.number("softcap"),
            smooth_softmax=node.flag("smooth_softmax"),
            head_sink="head_sink" in parts,
            kv_cache_layout=node.text("kv_cache_layout"),
            attention_mode=node.text("attention_mode"),
            selected_kv_source=node.text("selected_kv_source"),
            sparse_block_size=node.integer("sparse_block_size"),
            **quantization(node),
            **{name: node.text(name) for name in ("k_cache_dtype", "v_cache_dtype")},
        ),
        **({} if bounded is None else {"local_window_size": bounded}),
    }
