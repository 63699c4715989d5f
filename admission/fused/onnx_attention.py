"""Reads ONNX's own Attention, versions 23, 24 and 25.

Source: onnx/defs/nn/defs.cc. Version 24 adds nonpad_kv_seqlen, version 25 the windows.
"""

from __future__ import annotations

from qbpass.admission.fused.fused_node import FusedNode, shared
from qbpass.admission.fused.reading import Reading, score_scale, switched_on

_OPERANDS = ("q", "k", "v", "mask", "past_key", "past_value", "nonpad_kv_seqlen")
_RESULTS = ("output", "present_key", "present_value", "qk_matmul_output")


def read_onnx_attention(node: FusedNode) -> Reading:
    """Q (1, H, q, d), K (1, Hkv, n, d), V (1, Hkv, n, dv); or (1, q, H*d), (1, n, Hkv*d), (1, n, Hkv*dv).

    Where no past is given, n is the whole key extent (the cache is joined outside) or the new rows are all there are.
    """
    parts = node.named(_OPERANDS, _RESULTS)
    flat = node.rank(parts.get("q")) == 3
    heads, kv_heads = (node.count("q_num_heads"), node.count("kv_num_heads")) if flat else _axis_heads(node, parts)
    widths = [node.dim(parts.get(part), -1) for part in ("q", "v")]
    head_dim, value_dim = (shared(widths[0], heads), shared(widths[1], kv_heads)) if flat else widths
    causal = node.flag("is_causal")
    left = node.integer("left_window_size", -1)
    return Reading(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        scale=score_scale(node.number("scale"), head_dim),
        tensors=parts,
        features=_features(node, parts, flat),
        causal=causal or node.integer("right_window_size", -1) == 0,
        from_first_key=causal and "past_key" not in parts and "nonpad_kv_seqlen" not in parts,
        window=left if left is not None and left >= 0 else None,
        added="mask" if "mask" in parts else None,
        rows=("q", 1 if flat else 2),
        batch=tuple((part, 0) for part in ("q", "k", "v", "past_key", "past_value") if part in parts),
    )


def _axis_heads(node: FusedNode, parts: dict[str, str]) -> tuple[int | None, int | None]:
    if node.rank(parts.get("q")) != 4:
        return None, None
    return node.dim(parts.get("q"), 1), node.dim(parts.get("k"), 1)


def _features(node: FusedNode, parts: dict[str, str], flat: bool) -> dict[str, object]:
    windows = {name: node.integer(name, -1) for name in ("left_window_size", "right_window_size")}
    returned = "qk_matmul_output" in parts
    return {
        "is_causal": node.flag("is_causal"),
        **switched_on(
            rank_3=flat,
            softcap=node.number("softcap"),
            softmax_precision=node.integer("softmax_precision"),
            nonpad_kv_seqlen="nonpad_kv_seqlen" in parts,
        ),
        **{name: size for name, size in windows.items() if size is not None and size >= 0},
        **({"qk_matmul_output_mode": node.integer("qk_matmul_output_mode", 0)} if returned else {}),
    }
