"""ONNX's own Attention spelled out."""

from __future__ import annotations

from qbpass.admission.fused.subject import FusedSubject
from qbpass.admission.lowering.call_tensors import CallTensors
from qbpass.admission.lowering.core import Core
from qbpass.admission.lowering.spelled import Operands, causal_besides, core_of, in_heads
from qbpass.admission.lowering.writer import Writer


def spell_onnx_attention(w: Writer, at: str, subject: FusedSubject, call: CallTensors) -> tuple[Core, Operands]:
    """Q, K and V in heads, and the mask to add: booleans become 0 and -inf, the operator's own order joins them."""
    parts = subject.reading.tensors
    core = core_of(subject, flat=bool(subject.reading.features.get("rank_3")))
    q, k, v = (in_heads(w, at, core, part, parts[part]) for part in ("q", "k", "v"))
    mask = parts.get("mask")
    kind = 0 if mask is None else subject.flow.elem_type(mask)
    return core, Operands(q, k, v, call.additive(mask, kind, causal=causal_besides(subject)))
