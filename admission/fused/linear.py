"""Reads linear attentions and state spaces: operators that carry a state of fixed size instead of cached rows.

Source: onnx/defs/nn/defs.cc (LinearAttention, CausalConvWithState, opset 27) and onnxruntime/core/graph/contrib_ops
(LinearAttention, GatedDeltaNet, CausalConvWithState, VarlenCausalConvWithState, Mamba2Verify; ONNX Runtime 1.32).
"""

from __future__ import annotations

from collections.abc import Sequence

from qbpass.admission.fused.fused_node import FusedNode, shared
from qbpass.admission.fused.reading import Reading, score_scale, switched_on

_LINEAR = ("q", "k", "v", "past_state", "decay", "beta")
_GATED_DELTA = (
    *("q", "k", "v", "cu_seqlens", "decay", "beta", "past_state", "a_log", "dt_bias", "capture_count"),
    "state_update_active",
)
_CONVOLUTION = ("input", "weights", "bias", "past_state")
_PACKED_CONVOLUTION = (
    *("input", "weights", "cu_seqlens", "bias", "past_state", "capture_count", "kernel_delta", "previous_mask"),
)
_MAMBA = (
    *("input", "past_conv_state", "past_state", "conv_weight", "conv_bias", "dt_bias", "a_negative", "d"),
    *("norm_weight", "state_row"),
)
_STATE_RESULTS = ("output", "present_state", "state_update")


def read_linear_attention(node: FusedNode) -> Reading:
    """Q (1, q, H*dk), K (1, q, Hkv*dk), V (1, q, Hkv*dv); state (1, Hkv, dk, dv)."""
    parts = node.named(_LINEAR, _STATE_RESULTS[:2])
    heads, kv_heads = node.count("q_num_heads"), node.count("kv_num_heads")
    head_dim, value_dim = shared(node.dim(parts.get("q"), -1), heads), shared(node.dim(parts.get("v"), -1), kv_heads)
    return _reading(node, parts, heads, kv_heads, head_dim, value_dim)


def read_gated_delta_net(node: FusedNode) -> Reading:
    """Q and K (tokens, H, dk), V (tokens, Hv, dv), or with a batch axis in front; state (1, Hv, dv, dk)."""
    parts = node.named(_GATED_DELTA, _STATE_RESULTS)
    heads, value_heads = node.dim(parts.get("q"), -2), node.dim(parts.get("v"), -2)
    head_dim, value_dim = node.dim(parts.get("q"), -1), node.dim(parts.get("v"), -1)
    if "k" not in parts:  # packed: the state says what q holds
        heads, value_heads = None, node.dim(parts.get("past_state"), 1)
        head_dim, value_dim = node.dim(parts.get("past_state"), -1), node.dim(parts.get("past_state"), -2)
        parts["packed_qkv"] = parts.pop("q", "")
    return _reading(node, parts, heads, value_heads, head_dim, value_dim)


def read_causal_convolution(node: FusedNode) -> Reading:
    """Input (1, channels, q); state (1, channels, kernel - 1): the inputs that the next call still needs."""
    return _reading(node, node.named(_CONVOLUTION, _STATE_RESULTS))


def read_packed_convolution(node: FusedNode) -> Reading:
    """VarlenCausalConvWithState: the same over tokens packed behind each other."""
    return _reading(node, node.named(_PACKED_CONVOLUTION, _STATE_RESULTS))


def read_mamba(node: FusedNode) -> Reading:
    """Mamba2Verify: projection (q, width); convolution and state-space states, one snapshot a slot."""
    results = ("output", "present_conv_state", "present_state", "xbc", "readout")
    heads = node.count("heads")
    return _reading(node, node.named(_MAMBA, results), heads, heads)


def _reading(
    node: FusedNode,
    parts: dict[str, str],
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
) -> Reading:
    names: Sequence[str] = ("state_window", "state_update_capacity", "chunk_size", "dilation", "ndim")
    return Reading(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        scale=score_scale(node.number("scale"), head_dim),
        tensors={part: tensor for part, tensor in parts.items() if tensor},
        features=switched_on(
            update_rule=node.text("update_rule"),
            activation=node.text("activation"),
            gate_activation=node.text("gate_activation"),
            **{name: node.integer(name) for name in names},
        ),
        causal=True,
    )
