"""com.microsoft MultiHeadAttention spelled out. Q is (1, q, H*d); K and V are that, or (1, H, n, d) joined before."""

from __future__ import annotations

from qbpass.admission.fused.subject import FusedSubject
from qbpass.admission.lowering.call_tensors import CallTensors
from qbpass.admission.lowering.core import Core
from qbpass.admission.lowering.spelled import Operands, causal_besides, core_of, in_heads
from qbpass.admission.lowering.writer import Writer


def spell_mha(w: Writer, at: str, subject: FusedSubject, call: CallTensors) -> tuple[Core, Operands]:
    parts = subject.reading.tensors
    core = core_of(subject, flat=True)
    q, k, v = (
        parts[part] if subject.node.rank(parts[part]) == 4 else in_heads(w, at, core, part, parts[part])
        for part in ("q", "k", "v")
    )
    bias = parts.get("attention_bias")
    kind = 0 if bias is None else subject.flow.elem_type(bias)
    return core, Operands(q, k, v, call.additive(bias, kind, causal=causal_besides(subject)))
