"""The core that every softmax attention has: scores, mask, softmax, values.

The operators are those that ONNX Runtime's own optimizer leaves of an attention that is exported in pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

from qbpass.admission.lowering.writer import Writer


@dataclass(frozen=True)
class Core:
    """The numbers of one attention. kv_heads: that the operator reads; scale: the factor on the scores, as float32."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    flat: bool

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads


def write_core(w: Writer, at: str, core: Core, q: str, key: str, value: str, mask: str | None, output: str) -> str:
    """`output` in the operator's own form of q (1, H, q, d), key and value (1, Hkv, n, d) and an additive mask.

    Returns the same as (1, H, q, dv).
    """
    keys = _repeated(w, key, core, core.head_dim, f"{at}/key")
    values = _repeated(w, value, core, core.value_dim, f"{at}/value")
    scores = w.node(
        "FusedMatMul", [q, keys], f"{at}/scores", domain="com.microsoft", alpha=core.scale, transA=0, transB=1
    )
    if mask is not None:
        scores = w.node("Add", [scores, mask], f"{at}/masked")
    weights = w.node("Softmax", [scores], f"{at}/weights", axis=-1)
    if not core.flat:
        return w.node("MatMul", [weights, values], output)
    mixed = w.node("MatMul", [weights, values], f"{at}/mixed")
    turned = w.node("Transpose", [mixed], f"{at}/by_row", perm=[0, 2, 1, 3])
    w.node("Reshape", [turned, w.constant([1, -1, core.heads * core.value_dim])], output)
    return mixed


def by_head(w: Writer, flat: str, heads: int, width: int, name: str) -> str:
    """(1, rows, heads * width) -> (1, heads, rows, width)."""
    split = w.node("Reshape", [flat, w.constant([1, -1, heads, width])], f"{name}/split")
    return w.node("Transpose", [split], name, perm=[0, 2, 1, 3])


def _repeated(w: Writer, tensor: str, core: Core, width: int, name: str) -> str:
    """(1, Hkv, n, width) -> (1, H, n, width): query head h reads KV head h // group."""
    if core.group == 1:
        return tensor
    apart = w.node("Unsqueeze", [tensor, w.constant([2])], f"{name}/apart")
    wide = w.node("Expand", [apart, w.constant([1, 1, core.group, 1, 1])], f"{name}/wide")
    return w.node("Reshape", [wide, w.constant([1, core.heads, -1, width])], f"{name}/repeated")
