"""A fused operator's node as its reader asks about it: operands and results by number, attributes by type, sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import AttributeProto

from qbpass.admission.dataflow import Flow


@dataclass(frozen=True)
class FusedNode:
    """One node. An attribute of another type than its schema says counts as left out: the file is a stranger's."""

    node: onnx.NodeProto
    flow: Flow

    @property
    def operator(self) -> str:
        return f"{self.node.domain or 'ai.onnx'}::{self.node.op_type}"

    def operand(self, number: int) -> str | None:
        """The tensor at an operand's place; None where it is left out."""
        return self.node.input[number] or None if number < len(self.node.input) else None

    def named(self, operands: Sequence[str], results: Sequence[str]) -> dict[str, str]:
        """Part -> tensor, for the parts that are there. The names stand in the order of the operator's schema."""
        places = (*zip(operands, self.node.input, strict=False), *zip(results, self.node.output, strict=False))
        return {part: str(tensor) for part, tensor in places if tensor}

    def rank(self, tensor: str | None) -> int | None:
        shape = None if tensor is None else self.flow.shape(tensor)
        return None if shape is None else len(shape)

    def dim(self, tensor: str | None, axis: int) -> int | None:
        """A dimension that is the same in every call; None where it varies or is unknown."""
        shape = None if tensor is None else self.flow.shape(tensor)
        if shape is None or not -len(shape) <= axis < len(shape):
            return None
        size = shape[axis]
        return size if isinstance(size, int) else None

    def integer(self, name: str, default: int | None = None) -> int | None:
        found = self._attribute(name, AttributeProto.INT)
        return default if found is None else int(found.i)

    def count(self, name: str) -> int | None:
        """A number of heads or columns: None unless it is positive."""
        found = self.integer(name)
        return found if found is not None and found > 0 else None

    def flag(self, name: str, default: bool = False) -> bool:
        found = self.integer(name)
        return default if found is None else found == 1

    def number(self, name: str) -> float | None:
        """None where it is no finite number, too."""
        found = self._attribute(name, AttributeProto.FLOAT)
        return float(found.f) if found is not None and math.isfinite(found.f) else None

    def text(self, name: str, default: str = "") -> str:
        found = self._attribute(name, AttributeProto.STRING)
        return default if found is None else found.s.decode(errors="replace")

    def integers(self, name: str) -> list[int]:
        found = self._attribute(name, AttributeProto.INTS)
        return [] if found is None else [int(value) for value in found.ints]

    def _attribute(self, name: str, kind: int) -> AttributeProto | None:
        return next((entry for entry in self.node.attribute if entry.name == name and entry.type == kind), None)


def shared(width: int | None, parts: int | None) -> int | None:
    """Columns of one part of a width that holds `parts` equal ones; None where it does not."""
    if width is None or width <= 0 or not parts or width % parts:
        return None
    return width // parts
