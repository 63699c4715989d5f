"""A fused operator evaluated in NumPy from what its facts say: head counts, dimensions, scale, parts and features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qbpass.admission.facts import AttentionFacts

Array = np.ndarray[Any, Any]


def attend(facts: AttentionFacts, values: Mapping[str, Array]) -> Array:
    """Output (q, heads * value_dim). values: tensor -> array, for the tensors that the facts name."""
    found = {part: values[name] for part, name in facts.tensors.items() if name in values}
    heads, kv_heads, scale = facts.heads, facts.kv_heads, facts.scale
    assert heads is not None
    assert kv_heads is not None
    q_HQD, k_KND, v_KND = (part[0] for part in _split(facts, found))
    past = found.get("past")
    past_key, past_value = (found.get("past_key"), found.get("past_value")) if past is None else (past[0], past[1])
    before = 0 if past_key is None else past_key.shape[-2]
    if facts.features.get("do_rotary"):
        q_HQD, k_KND = (
            _rotated(x, found, before, bool(facts.features.get("rotary_interleaved"))) for x in (q_HQD, k_KND)
        )
    if past_key is not None and past_value is not None and k_KND.shape[1] == q_HQD.shape[1]:
        k_KND, v_KND = np.concatenate([past_key[0], k_KND], 1), np.concatenate([past_value[0], v_KND], 1)
    k_HND, v_HND = (np.repeat(x, heads // x.shape[0], axis=0) for x in (k_KND, v_KND))
    scores = np.einsum("hqd,hnd->hqn", q_HQD, k_HND) * scale
    if cap := facts.features.get("softcap"):
        scores = np.tanh(scores / cap) * cap
    scores = scores + _masks(facts, found, scores.shape[1:])
    out_HQD = np.einsum("hqn,hnd->hqd", _softmax(scores, facts, found), v_HND)
    return np.concatenate(list(out_HQD), axis=-1)


def _split(facts: AttentionFacts, found: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """Q, K and V as (1, heads, rows, columns), whatever they are packed in."""
    heads, kv_heads, d, dv = facts.heads, facts.kv_heads, facts.head_dim, facts.value_dim
    assert None not in (heads, kv_heads, d, dv)
    if "packed_qkv" in found and found["packed_qkv"].ndim == 5:
        q, k, v = (x[:, :, :, 0] for x in np.split(found["packed_qkv"], 3, axis=3))
        return q.transpose(0, 2, 1, 3), k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    if "packed_kv" in found:
        k, v = (x[:, :, :, 0].transpose(0, 2, 1, 3) for x in np.split(found["packed_kv"], 2, axis=3))
        return _heads(found["q"], heads), k, v
    if "packed_qkv" in found or "input" in found:
        flat = found["packed_qkv"] if "packed_qkv" in found else found["input"] @ found["weights"] + found["bias"]
        parts = np.split(flat, np.cumsum([heads * d, kv_heads * d]), axis=-1)
    else:
        parts = [found["q"], found["k"], found["v"]]
    read = facts.features.get("kv_heads_read", kv_heads)
    return _heads(parts[0], heads), _heads(parts[1], read), _heads(parts[2], read)


def _heads(x: Array, heads: int | None) -> Array:
    assert heads is not None
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _rotated(x_HQD: Array, found: Mapping[str, Array], before: int, interleaved: bool) -> Array:
    rows = slice(before, before + x_HQD.shape[1])
    cos, sin = found["cos_cache"][rows], found["sin_cache"][rows]
    one, other = (x_HQD[..., ::2], x_HQD[..., 1::2]) if interleaved else np.split(x_HQD, 2, axis=-1)
    turned = one * cos - other * sin, one * sin + other * cos
    return np.stack(turned, axis=-1).reshape(x_HQD.shape) if interleaved else np.concatenate(turned, axis=-1)


def _masks(facts: AttentionFacts, found: Mapping[str, Array], shape: tuple[int, ...]) -> Array:
    queries, keys = shape
    distance = np.arange(keys - queries, keys)[:, None] - np.arange(keys)
    total = np.zeros((1, queries, keys))
    causal = any(facts.features.get(name) for name in ("causal", "unidirectional", "is_causal"))
    if causal or facts.features.get("right_window_size") == 0:
        total = total + np.where(distance < 0, -np.inf, 0)
    for name, own in (("local_window_size", 0), ("left_window_size", 1)):  # left_window_size leaves out the own key
        if name in facts.features:
            total = total + np.where(distance >= facts.features[name] + own, -np.inf, 0)
    for part in ("attention_bias", "mask"):
        if part in found:
            mask = found[part][0]
            total = total + (np.where(mask, 0, -np.inf) if mask.dtype == bool else mask)
    return total


def _softmax(scores_HQN: Array, facts: AttentionFacts, found: Mapping[str, Array]) -> Array:
    sink = found["head_sink"][:, None, None] if "head_sink" in found else None
    if facts.features.get("smooth_softmax"):
        sink = np.zeros((1, 1, 1))
    exponentials = np.exp(scores_HQN)
    total = exponentials.sum(-1, keepdims=True)
    return exponentials / (total if sink is None else total + np.exp(sink))
