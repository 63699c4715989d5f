"""One fused operator spelled out: the tensors that a site of primitives is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qbpass.admission.fused.mask_checks import ordered_by_its_mask
from qbpass.admission.fused.subject import FusedSubject
from qbpass.admission.lowering.core import Core, by_head, write_core
from qbpass.admission.lowering.writer import Writer


@dataclass(frozen=True)
class Operands:
    """What the core reads. q (1, H, q, d); key, value: new rows or whole, (1, Hkv, rows, d); mask: to be added."""

    q: str
    key: str
    value: str
    mask: str | None


def core_of(subject: FusedSubject, *, flat: bool) -> Core:
    """Raises ValueError where the operator's numbers are unknown: `lowerable` speaks for those."""
    reading = subject.reading
    heads, kv_heads, head_dim, value_dim = reading.heads, reading.kv_heads, reading.head_dim, reading.value_dim
    if heads is None or kv_heads is None or head_dim is None or value_dim is None:
        raise ValueError(f"{subject.name} has unknown sizes")
    given = subject.node.number("scale")
    scale = np.float32(given) if given else np.float32(1) / np.sqrt(np.float32(head_dim))
    return Core(heads, kv_heads, head_dim, value_dim, float(scale), flat)


def causal_besides(subject: FusedSubject) -> bool:
    """Whether the operator's own order of rows has to be written: it does, unless its mask has it already."""
    return subject.reading.causal and not ordered_by_its_mask(subject)


def in_heads(w: Writer, at: str, core: Core, part: str, tensor: str) -> str:
    """Q, K or V as (1, heads, rows, width)."""
    if not core.flat:
        return tensor
    heads = core.heads if part == "q" else core.kv_heads
    return by_head(w, tensor, heads, core.value_dim if part == "v" else core.head_dim, f"{at}/{part}")


def write_attention(w: Writer, at: str, core: Core, parts: dict[str, str], operands: Operands) -> str:
    """The whole of it behind the operands: past and new rows joined where the operator does, then the core.

    Returns the output as (1, H, q, dv).
    """
    key, value = operands.key, operands.value
    if "past_key" in parts:
        key = w.node("Concat", [parts["past_key"], key], parts.get("present_key") or f"{at}/present_key", axis=2)
        value = w.node(
            "Concat", [parts["past_value"], value], parts.get("present_value") or f"{at}/present_value", axis=2
        )
    return write_core(w, at, core, operands.q, key, value, operands.mask, parts["output"])
