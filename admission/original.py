"""The fused operator that a site of primitives stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx

from qbpass.models.dataflow import attribute


@dataclass(frozen=True)
class FusedOriginal:
    """One fused attention as the frozen graph has it. It stays what the native layout runs; see admission/lowering.

    Shapes: flat, Q and the output are (1, q, H*d), else (1, H, q, d); K and V alike by `flat_kv`, with `kv_heads`
    heads. They are the new rows where the operator appends them to the past itself, else the whole keys and values.
    """

    node: onnx.NodeProto
    kind: str  # "onnx_attention" | "gqa" | "mha"
    parts: Mapping[str, str]  # part -> tensor, operands and results (admission/fused/reading.py)
    types: Mapping[str, int] = field(default_factory=dict)  # operand -> onnx.TensorProto.DataType
    kv_heads: int = 0  # that the operator reads: the cache's, or all heads where each was repeated before
    flat: bool = False
    flat_kv: bool = False
    positions: int | None = None  # that its rotary tables hold

    @property
    def appends(self) -> bool:
        """Whether the operator itself puts the new rows to the past."""
        return "past_key" in self.parts

    @property
    def operands(self) -> list[str]:
        """What the operator reads, in order, each once."""
        return list(dict.fromkeys(str(name) for name in self.node.input if name))

    def row_axis(self, part: str) -> int:
        """The axis of the rows in Q, K or V."""
        return 1 if (self.flat_kv if part in ("k", "v") else self.flat) else 2

    def part_of(self, operand: str) -> str | None:
        """The part an operand is; None for one that no reader names."""
        return next((part for part, tensor in self.parts.items() if tensor == operand), None)

    def same_as(self, node: onnx.NodeProto) -> bool:
        """Whether a node is this operator with these attributes, whatever it reads."""
        if (node.domain, node.op_type) != (self.node.domain, self.node.op_type):
            return False
        names = {entry.name for entry in (*node.attribute, *self.node.attribute)}
        return all(attribute(node, name) == attribute(self.node, name) for name in names)
