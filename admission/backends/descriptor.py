"""Declared descriptors: what a graph asks of a backend, one for each distinct thing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from onnx import TensorProto

Dim = int | str | None
Shape = tuple[Dim, ...]
Value = int | float | str | tuple[int | float | str, ...]

#: graph: the model's own node. qb: a node that a query-to-batch rewrite emits for it.
Part = Literal["graph", "qb"]


@dataclass(frozen=True)
class Operand:
    """What is known of one operand or result. None: not known; a symbol in `shape`: declared to be dynamic.

    elem_type: as ONNX writes it, "tensor(float)". strides: in elements, where a layout says them. parameter: the type
    parameter or type that the operator's schema has at this place; None where ONNX has no schema. name: the formal
    operand's.
    """

    elem_type: str | None = None
    shape: Shape | None = None
    strides: tuple[int | None, ...] | None = None
    parameter: str | None = None
    name: str | None = None

    def to_json(self) -> dict[str, Any]:
        shown = {"name": self.name, "parameter": self.parameter, "type": self.elem_type}
        shape = {} if self.shape is None else {"shape": list(self.shape)}
        strides = {} if self.strides is None else {"strides": list(self.strides)}
        return {key: value for key, value in shown.items() if value is not None} | shape | strides


@dataclass(frozen=True)
class Descriptor:
    """One distinct thing that a graph asks for.

    domain: "" is ai.onnx. opset: the model's version of the domain. since: the operator's own version at that opset.
    inputs, outputs: None for an optional operand that is left out. attributes: numbers, strings and lists of them.
    bodies: attributes that hold a graph (control flow). queries: rows of the call the descriptor stands for, where it
    belongs to a site. nodes, example: how many nodes ask for it, and the first one's name.
    """

    operator: str
    domain: str = ""
    opset: int | None = None
    since: int | None = None
    inputs: tuple[Operand | None, ...] = ()
    outputs: tuple[Operand | None, ...] = ()
    attributes: tuple[tuple[str, Value], ...] = ()
    bodies: tuple[str, ...] = ()
    function_body: bool = False
    site: str | None = None
    part: Part = "graph"
    queries: int | None = None
    nodes: int = field(default=1, compare=False)
    example: str = field(default="", compare=False)

    @property
    def label(self) -> str:
        """The operator as reports write it: `ai.onnx` is not written out."""
        return f"{self.domain}::{self.operator}" if self.domain else self.operator

    @cached_property
    def types(self) -> Mapping[str, str]:
        """Type parameter -> element type, of the first operand that stands for it and whose type is known."""
        found: dict[str, str] = {}
        for operand in (*self.inputs, *self.outputs):
            if operand is not None and operand.parameter is not None and operand.elem_type is not None:
                found.setdefault(operand.parameter, operand.elem_type)
        return found

    @property
    def dynamic(self) -> bool:
        """Whether some operand is declared with a symbolic dimension."""
        return any(isinstance(dim, str) for operand in self.operands for dim in operand.shape or ())

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Operands and results that are there."""
        return tuple(operand for operand in (*self.inputs, *self.outputs) if operand is not None)

    def input(self, index: int) -> Operand | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def attribute(self, name: str, default: Value | None = None) -> Value | None:
        return next((value for key, value in self.attributes if key == name), default)

    def to_json(self) -> dict[str, Any]:
        return {
            "operator": self.operator,
            "domain": self.domain or "ai.onnx",
            "opset": self.opset,
            "since": self.since,
            "site": self.site,
            "part": self.part,
            "queries": self.queries,
            "nodes": self.nodes,
            "example": self.example,
            "inputs": [None if operand is None else operand.to_json() for operand in self.inputs],
            "outputs": [None if operand is None else operand.to_json() for operand in self.outputs],
            "attributes": {key: list(value) if isinstance(value, tuple) else value for key, value in self.attributes},
            "bodies": list(self.bodies),
            "dynamic": self.dynamic,
        }


def type_name(elem_type: int) -> str | None:
    """`tensor(float)` for onnx.TensorProto.FLOAT; None for UNDEFINED and unknown numbers."""
    if elem_type == TensorProto.UNDEFINED or elem_type not in TensorProto.DataType.values():
        return None
    return f"tensor({TensorProto.DataType.Name(elem_type).lower()})"
