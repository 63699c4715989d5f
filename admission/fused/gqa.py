"""Reads com.microsoft GroupQueryAttention, and the operators that share its form.

Source: onnxruntime/core/graph/contrib_ops/bert_defs.cc, GroupQueryAttention (schemas of ONNX Runtime 1.24 to 1.32).
"""

from __future__ import annotations

from qbpass.admission.fused.fused_node import FusedNode, shared
from qbpass.admission.fused.reading import Reading, score_scale, switched_on

_OPERANDS = (
    *("q", "k", "v", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache"),
    *("position_ids", "attention_bias", "head_sink", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight"),
    "query_seqlens",
)
_RESULTS = ("output", "present_key", "present_value", "output_qk")


def read_gqa(node: FusedNode) -> Reading:
    """Q (1, q, H*d), K and V (1, q, Hkv*d), or one packed (1, q, (H + 2*Hkv)*d); past and present (1, Hkv, n, d)."""
    parts = node.named(_OPERANDS, _RESULTS)
    heads, kv_heads = node.count("num_heads"), node.count("kv_num_heads")
    packed = "k" not in parts
    head_dim, value_dim = head_dims(node, parts, heads, kv_heads)
    first = "packed_qkv" if packed else "q"
    if packed and "q" in parts:
        parts["packed_qkv"] = parts.pop("q")
    return Reading(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        scale=score_scale(node.number("scale"), head_dim),
        tensors=parts,
        features=_features(node, parts, packed),
        causal=node.flag("causal", default=True),
        window=window(node),
        added="attention_bias" if "attention_bias" in parts else None,
        rows=(first, 1),
        batch=tuple((part, 0) for part in (first, "past_key", "past_value") if part in parts),
    )


def head_dims(
    node: FusedNode, parts: dict[str, str], heads: int | None, kv_heads: int | None
) -> tuple[int | None, int | None]:
    """(columns of a query and key head, columns of a value head); q holds all three where k is absent."""
    width = node.dim(parts.get("q"), -1)
    if "k" not in parts:
        head_dim = shared(width, heads + 2 * kv_heads) if heads and kv_heads else None
        return head_dim, head_dim
    return shared(width, heads), shared(node.dim(parts.get("v"), -1), kv_heads)


def window(node: FusedNode) -> int | None:
    """local_window_size where it is in use: it counts the query's own key, and -1 turns it off."""
    size = node.integer("local_window_size", -1)
    return size if size is not None and size >= 0 else None


def _features(node: FusedNode, parts: dict[str, str], packed: bool) -> dict[str, object]:
    found = switched_on(
        packed_qkv=packed,
        do_rotary=node.flag("do_rotary"),
        rotary_interleaved=node.flag("rotary_interleaved"),
        qk_norm="q_norm_weight" in parts,
        softcap=node.number("softcap"),
        smooth_softmax=node.flag("smooth_softmax"),
        head_sink="head_sink" in parts,
        sliding_window_cache=node.flag("sliding_window_cache"),
        qk_output=node.integer("qk_output"),
        **quantization(node),
    )
    if window(node) is not None:
        found["local_window_size"] = window(node)
    return {"causal": node.flag("causal", default=True), **found}


def quantization(node: FusedNode) -> dict[str, object]:
    """The attributes that say how a cache is quantized."""
    return {
        "k_quant_type": node.text("k_quant_type", "NONE"),
        "v_quant_type": node.text("v_quant_type", "NONE"),
        "kv_cache_bit_width": node.integer("kv_cache_bit_width"),
    }
