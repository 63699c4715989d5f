"""An attention site: the part of a decoder graph that a layout may rewrite, by tensor and node names."""

from __future__ import annotations

from dataclasses import dataclass, field

from qbpass.admission.extents import Extent


@dataclass(frozen=True)
class SiteNodes:
    """The site's nodes, each named by its first output tensor (unique in a graph in SSA form; node names are not)."""

    key_path: tuple[str, ...]  # from the present key to the QK product's second operand: repeat, transpose, ...
    qk: str  # MatMul or FusedMatMul of queries and keys
    score_path: tuple[str, ...]  # elementwise, from the QK product to the softmax's input, in order: scale, mask, cast
    softmax: str
    prob_path: tuple[str, ...]  # elementwise, from the softmax to the AV product's first operand: NaN guard, cast
    av: str  # MatMul of probabilities and values
    value_path: tuple[str, ...]  # from the present value to the AV product's second operand

    def all(self) -> tuple[str, ...]:
        return (*self.key_path, *self.value_path, self.qk, *self.score_path, self.softmax, *self.prob_path, self.av)


@dataclass(frozen=True)
class ScalarFactor:
    """A Mul or Div on the path from the cache to a product: `kept` (Mul, Div) `factor`, one element."""

    node: str
    kept: str
    factor: str


@dataclass(frozen=True)
class AttentionSite:
    """One attention of a decoder, in the terms of its own graph.

    Shapes: q (1, H, q, d), k and v (1, Hkv, n, d) after the new rows are appended and before any repeat,
    mask broadcastable to (1, H, q, n), output (1, H, q, dv).
    """

    name: str
    kind: str  # "decomposed" | "onnx_attention" | "gqa" | "mha" | ...
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    elem_type: int  # onnx.TensorProto.DataType of Q
    scale: float | None  # the product of every constant factor on the scores
    q: str
    k: str
    v: str
    mask: str | None
    output: str
    past_key: str | None  # graph inputs
    past_value: str | None
    new_key: str | None  # (1, Hkv, q, d): what the export concatenates behind the past
    new_value: str | None
    present_key: str | None  # graph outputs
    present_value: str | None
    nodes: SiteNodes
    shapes: dict[str, tuple[int | str | None, ...]] = field(default_factory=dict, compare=False)
    # Scalar factors between the cached keys, or values, and their product, in order.
    key_factors: tuple[ScalarFactor, ...] = ()
    value_factors: tuple[ScalarFactor, ...] = ()
    # Tensors whose size is asked for across this attention's border (site_sizes.py), with that size.
    sizes: dict[str, tuple[Extent, ...]] = field(default_factory=dict, compare=False)

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.heads // self.kv_heads
