"""com.microsoft GroupQueryAttention spelled out: the packed projection taken apart, and the rotation it does itself."""

from __future__ import annotations

from qbpass.admission.fused.subject import FusedSubject
from qbpass.admission.lowering.call_tensors import CallTensors
from qbpass.admission.lowering.core import Core, by_head
from qbpass.admission.lowering.spelled import Operands, causal_besides, core_of
from qbpass.admission.lowering.writer import Writer


def spell_gqa(w: Writer, at: str, subject: FusedSubject, call: CallTensors) -> tuple[Core, Operands]:
    """Queries and new keys are rotated by com.microsoft RotaryEmbedding, with the caches and positions of the node."""
    parts = dict(subject.reading.tensors)
    core = core_of(subject, flat=True)
    if "packed_qkv" in parts:
        sizes = [heads * core.head_dim for heads in (core.heads, core.kv_heads, core.kv_heads)]
        q = w.node("Split", [parts["packed_qkv"], w.constant(sizes)], f"{at}/qkv", outputs=3, axis=-1)
        parts |= {"q": q, "k": f"{q}.1", "v": f"{q}.2"}
    if subject.reading.features.get("do_rotary"):
        positions = parts.get("position_ids") or call.positions()
        for part, heads in (("q", core.heads), ("k", core.kv_heads)):
            parts[part] = _rotated(w, f"{at}/{part}/rotated", subject, core, parts, part, heads, positions)
    q, k = (by_head(w, parts[p], h, core.head_dim, f"{at}/{p}") for p, h in (("q", core.heads), ("k", core.kv_heads)))
    v = by_head(w, parts["v"], core.kv_heads, core.value_dim, f"{at}/v")
    bias = parts.get("attention_bias")
    kind = 0 if bias is None else subject.flow.elem_type(bias)
    return core, Operands(q, k, v, call.additive(bias, kind, causal=causal_besides(subject)))


def _rotated(
    w: Writer,
    name: str,
    subject: FusedSubject,
    core: Core,
    parts: dict[str, str],
    part: str,
    heads: int,
    positions: str,
) -> str:
    """(1, rows, heads * d)."""
    width = subject.node.dim(parts["cos_cache"], -1)
    attributes = {"interleaved": int(bool(subject.reading.features.get("rotary_interleaved")))}
    if width is not None and 2 * width != core.head_dim:
        attributes |= {"num_heads": heads, "rotary_embedding_dim": 2 * width}
    operands = [parts[part], positions, parts["cos_cache"], parts["sin_cache"]]
    return w.node("RotaryEmbedding", operands, name, domain="com.microsoft", **attributes)
