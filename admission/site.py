"""An attention site: the part of a decoder graph that a layout may rewrite, by tensor and node names."""

from __future__ import annotations

from dataclasses import dataclass, field

from qbpass.admission.extents import Extent
from qbpass.admission.original import FusedOriginal

STANDARD_AXES: tuple[int, ...] = (0, 1, 2, 3)  # of (1, Hkv, rows, d)


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
    softmax_parts: tuple[str, ...] = ()  # of a softmax spelled out (softmax.py): its nodes before `softmax`, in order

    @property
    def scores_to_weights(self) -> tuple[str, ...]:
        """Everything between the two products, in order."""
        return (*self.score_path, *self.softmax_parts, self.softmax, *self.prob_path)

    def all(self) -> tuple[str, ...]:
        return (*self.key_path, *self.value_path, self.qk, *self.scores_to_weights, self.av)


@dataclass(frozen=True)
class ElementStep:
    """An operation on single elements on the path from the cache to a product.

    A Mul or Div: `kept` (Mul, Div) `factor`, one element. A Cast: `to` is the onnx.TensorProto.DataType.
    """

    node: str
    kept: str
    factor: str = ""
    to: int = 0


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
    elem_type: int  # onnx.TensorProto.DataType of Q and of the keys it is multiplied by
    scale: float | None  # the product of every constant factor on the scores
    q: str
    k: str
    v: str
    mask: str | None
    output: str
    past_key: str | None  # graph inputs
    past_value: str | None
    new_key: str | None  # (1, Hkv, q, d), in the order of key_axes: what the export concatenates behind the past
    new_value: str | None
    present_key: str | None  # graph outputs
    present_value: str | None
    nodes: SiteNodes
    shapes: dict[str, tuple[int | str | None, ...]] = field(default_factory=dict, compare=False)
    # Operations on single elements between the cached keys, or values, and their product, in order.
    key_steps: tuple[ElementStep, ...] = ()
    value_steps: tuple[ElementStep, ...] = ()
    # What the export puts in front of the new rows, where that is the past turned, or cast to another type; and the
    # order in which it joins them: axis i of old and new rows is axis key_axes[i] of (1, Hkv, rows, d).
    old_key: str | None = None
    old_value: str | None = None
    key_axes: tuple[int, ...] = STANDARD_AXES
    value_axes: tuple[int, ...] = STANDARD_AXES
    # onnx.TensorProto.DataType of the tensors above that are not of elem_type.
    types: dict[str, int] = field(default_factory=dict, compare=False)
    # Tensors whose size is asked for across this attention's border (site_sizes.py), with that size.
    sizes: dict[str, tuple[Extent, ...]] = field(default_factory=dict, compare=False)
    # The fused node that stands in the frozen graph where this site was read in the lowered one (lowering/).
    fused: FusedOriginal | None = field(default=None, compare=False)

    def type_of(self, tensor: str) -> int:
        """onnx.TensorProto.DataType of one of the tensors above."""
        return self.types.get(tensor, self.elem_type)

    @property
    def value_type(self) -> int:
        """Of the values as their product reads them, and so of its result."""
        return self.type_of(self.output)

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.heads // self.kv_heads
