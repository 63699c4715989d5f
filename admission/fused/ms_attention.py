"""Reads com.microsoft Attention and its quantized and one-row relatives: operators that hold the projections, too.

Source: onnxruntime/core/graph/contrib_ops/bert_defs.cc and quantization_defs.cc (schemas of ONNX Runtime 1.32).
"""

from __future__ import annotations

from collections.abc import Sequence

from qbpass.admission.fused.fused_node import FusedNode, shared
from qbpass.admission.fused.reading import Reading, score_scale, switched_on

_RESULTS = ("output", "present")
_ATTENTION = ("input", "weights", "bias", "mask_index", "past", "attention_bias", "past_sequence_length")
_ONE_ROW = (*_ATTENTION, "beam_width", "cache_indirection")
_QUANTIZED = (
    *("input", "weights", "bias", "input_scale", "weight_scale", "mask_index", "input_zero_point"),
    *("weight_zero_point", "past"),
)
_ORDERED = (
    *("input", "scale_input", "scale_Q_gemm", "scale_K_gemm", "scale_V_gemm", "Q_weight", "K_weight", "V_weight"),
    *("scale_Q_weight", "scale_K_weight", "scale_V_weight", "Q_bias", "K_bias", "V_bias", "scale_QKT_gemm"),
    *("scale_QKT_softmax", "scale_values_gemm", "mask_index", "past", "attention_bias"),
)


def read_ms_attention(node: FusedNode) -> Reading:
    """Input (1, q, w), weights (w, H*d + H*d + H*dv) for Q, K, V side by side; past and present (2, 1, H, n, d)."""
    return _read(node, _ATTENTION)


def read_quantized_attention(node: FusedNode) -> Reading:
    """QAttention: as Attention, with input and weights in 8 bits."""
    return _read(node, _QUANTIZED)


def read_ordered_attention(node: FusedNode) -> Reading:
    """QOrderedAttention: one 8-bit weight (w, H*d) each for Q, K and V."""
    parts = node.named(_ORDERED, _RESULTS)
    return _reading(node, parts, [node.dim(parts.get(f"{which}_weight"), -1) for which in "QKV"])


def read_masked_self_attention(node: FusedNode) -> Reading:
    """DecoderMaskedSelfAttention: as Attention, for calls of one token."""
    return _read(node, _ONE_ROW, other_rows="takes calls of one token only", causal=True)


def _read(node: FusedNode, operands: Sequence[str], other_rows: str | None = None, causal: bool = False) -> Reading:
    parts = node.named(operands, _RESULTS)
    third = shared(node.dim(parts.get("weights"), -1), 3)
    widths: list[int | None] = [*node.integers("qkv_hidden_sizes")] or [third] * 3
    return _reading(node, parts, widths, other_rows, causal)


def _reading(
    node: FusedNode,
    parts: dict[str, str],
    widths: Sequence[int | None],
    other_rows: str | None = None,
    causal: bool = False,
) -> Reading:
    heads = node.count("num_heads")
    whole = len(widths) == 3
    head_dim, value_dim = (shared(widths[0], heads), shared(widths[2], heads)) if whole else (None, None)
    causal = causal or node.flag("unidirectional")
    return Reading(
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        value_dim=value_dim,
        scale=score_scale(node.number("scale"), head_dim),
        tensors=parts,
        features=_features(node, parts),
        causal=causal,
        added="attention_bias" if "attention_bias" in parts else None,
        key_mask="mask_index" if "mask_index" in parts else None,
        rows=("input", 1),
        other_rows=other_rows,
        # axis 0 of a stacked past tells keys from values
        batch=tuple((part, axis) for part, axis in (("input", 0), ("past", 1)) if part in parts),
    )


def _features(node: FusedNode, parts: dict[str, str]) -> dict[str, object]:
    return {
        "unidirectional": node.flag("unidirectional"),
        **switched_on(
            projections_inside=True,
            stacked_past="past" in parts or "present" in parts,
            do_rotary=node.flag("do_rotary"),
            rotary_embedding_dim=node.integer("rotary_embedding_dim"),
            qkv_hidden_sizes=node.integers("qkv_hidden_sizes"),
            mask_filter_value=node.number("mask_filter_value"),
            past_present_share_buffer=node.flag("past_present_share_buffer"),
        ),
    }
