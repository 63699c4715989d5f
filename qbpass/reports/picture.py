"""A drawing before it is laid out: boxes for nodes and tensors, lines for what flows between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["tensor", "product", "softmax", "attention", "cache", "scores", "layout"]


@dataclass(frozen=True)
class Box:
    """A node, or a tensor that enters or leaves (role tensor). hint: shown when pointed at."""

    key: str  # unique in its picture
    title: str
    detail: str
    role: Role
    hint: str = ""
    marked: bool = False


@dataclass(frozen=True)
class Line:
    """A tensor on its way from a box to one that reads it. label: its shape. indirect: with nodes left out between."""

    source: str
    target: str
    tensor: str
    label: str = ""
    indirect: bool = False


@dataclass(frozen=True)
class Picture:
    """Without cycles. sink: the box everything flows to."""

    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    sink: str

    def box(self, key: str) -> Box:
        return next(box for box in self.boxes if box.key == key)
