"""Reads the fused attentions of com.microsoft that no decoder exporter of today writes, and any that is unknown.

Source: onnxruntime/core/graph/contrib_ops/bert_defs.cc and quantization_defs.cc (schemas of ONNX Runtime 1.32).
"""

from __future__ import annotations

from dataclasses import replace

from qbpass.admission.fused.fused_node import FusedNode, shared
from qbpass.admission.fused.mha import read_mha
from qbpass.admission.fused.reading import Reading, score_scale, switched_on

_OF_TOKENS = "takes the tokens of several streams packed behind each other"
_PACKED = ("input", "weights", "bias", "token_offset", "cumulative_sequence_length", "attention_bias")
_PACKED_MHA = ("q", "k", "v", "bias", "token_offset", "cumulative_sequence_length", "attention_bias")
_ONE_ROW_MHA = (
    *("q", "k", "v", "mask_index", "attention_bias", "past_key", "past_value", "past_sequence_length", "beam_width"),
    *("cache_indirection", "bias"),
)
_DECODER = (
    *("q", "k", "q_weight", "kv_weight", "bias", "key_padding_mask", "past_key", "past_value", "static_kv"),
    *("use_past", "has_layer_state", "has_key_padding_mask"),
)
_LONGFORMER = ("input", "weights", "bias", "mask", "global_weight", "global_bias", "global")
_ORDERED_LONGFORMER = (
    *("input", "scale_input", "weights", "scale_weight", "bias", "scale_bias", "scale_qkv_gemm", "mask"),
    *("global_weight", "scale_global_weight", "global_bias", "scale_global_gemm", "global", "scale_output"),
)


def read_packed_attention(node: FusedNode) -> Reading:
    """Input (tokens, w), weights (w, H*d + H*d + H*dv): an encoder's, without a cache."""
    parts = node.named(_PACKED, ("output",))
    heads, third = node.count("num_heads"), shared(node.dim(parts.get("weights"), -1), 3)
    widths: list[int | None] = [*node.integers("qkv_hidden_sizes")] or [third] * 3
    head_dim, value_dim = (shared(widths[0], heads), shared(widths[2], heads)) if len(widths) == 3 else (None, None)
    return _of_tokens(node, parts, heads, head_dim, value_dim)


def read_packed_mha(node: FusedNode) -> Reading:
    """Q (tokens, H*d), K (tokens, H*d), V (tokens, H*dv), or packed (tokens, H, 3, d): an encoder's."""
    parts = node.named(_PACKED_MHA, ("output",))
    heads, packed = node.count("num_heads"), node.rank(parts.get("q")) == 4
    head_dim = node.dim(parts["q"], -1) if packed else shared(node.dim(parts.get("q"), -1), heads)
    value_dim = head_dim if packed else shared(node.dim(parts.get("v"), -1), heads)
    return _of_tokens(node, parts, heads, head_dim, value_dim)


def _of_tokens(
    node: FusedNode, parts: dict[str, str], heads: int | None, head_dim: int | None, value_dim: int | None
) -> Reading:
    return Reading(
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        value_dim=value_dim,
        scale=score_scale(node.number("scale"), head_dim),
        tensors=parts,
        features=switched_on(projections_inside="weights" in parts),
        added="attention_bias" if "attention_bias" in parts else None,
        other_rows=_OF_TOKENS,
    )


def read_masked_mha(node: FusedNode) -> Reading:
    """DecoderMaskedMultiHeadAttention: MultiHeadAttention for calls of one token; packed (1, 1, H*d + H*d + H*dv)."""
    parts = node.named(_ONE_ROW_MHA, ("output", "present_key", "present_value", "qk"))
    found = read_mha(node)
    packed = "k" not in parts
    if packed and "q" in parts:
        head_dim = shared(shared(node.dim(parts["q"], -1), 3), found.heads)
        parts["packed_qkv"] = parts.pop("q")
        scale = score_scale(node.number("scale"), head_dim)
        found = replace(found, head_dim=head_dim, value_dim=head_dim, scale=scale)
    first = "packed_qkv" if packed else "q"
    return replace(
        found,
        tensors=parts,
        features=switched_on(packed_qkv=packed, output_qk=node.flag("output_qk")),
        causal=True,
        added="attention_bias" if "attention_bias" in parts else None,
        key_mask="mask_index" if "mask_index" in parts else None,
        rows=(first, 1),
        other_rows="takes calls of one token only",
        batch=tuple((part, 0) for part in (first, "k", "v", "past_key", "past_value") if part in parts),
    )


def read_decoder_attention(node: FusedNode) -> Reading:
    """Q (q, 1, H*d), K (rows, 1, H*d), projected inside; which cache is read is said by boolean operands."""
    parts = node.named(_DECODER, ("output", "present_key", "present_value"))
    heads = node.count("num_heads")
    head_dim = shared(node.dim(parts.get("q"), -1), heads)
    return Reading(
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        value_dim=head_dim,
        scale=score_scale(None, head_dim),
        tensors=parts,
        features={"projections_inside": True},
        rows=("q", 0),
        batch=tuple((part, axis) for part, axis in (("q", 1), ("past_key", 0), ("past_value", 0)) if part in parts),
    )


def read_longformer_attention(node: FusedNode) -> Reading:
    """Input (1, rows, H*d), weights (H*d, 3*H*d): an encoder's, each row over a window and a few global rows."""
    ordered = node.node.op_type.startswith("QOrdered")
    parts = node.named(_ORDERED_LONGFORMER if ordered else _LONGFORMER, ("output",))
    heads = node.count("num_heads")
    head_dim = shared(node.dim(parts.get("input"), -1), heads)
    return Reading(
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        value_dim=head_dim,
        scale=score_scale(None, head_dim),
        tensors=parts,
        features={"projections_inside": True, **switched_on(window=node.integer("window"))},
        window=node.integer("window"),
        rows=("input", 1),
        batch=(("input", 0),),
    )


def read_unknown(node: FusedNode) -> Reading:
    """An operator that is an attention by its name: its tensors by number, and nothing known of what it does."""
    operands = [f"operand_{number}" for number in range(len(node.node.input))]
    results = ["output", *(f"result_{number}" for number in range(1, len(node.node.output)))]
    return Reading(tensors=node.named(operands, results), causal=True)
