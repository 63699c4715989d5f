"""The picture of one attention: the nodes between its operands and its output, as a graph really has them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import onnx

from qbpass.reports.node_index import NodeIndex, data_operands
from qbpass.reports.picture import Box, Line, Picture, Role
from qbpass.reports.plain import tail, visible

BOX_LIMIT = 44
_NAME, _HINT = 21, 300

_ROLES: dict[str, Role] = {
    **dict.fromkeys(("MatMul", "FusedMatMul", "Gemm", "Einsum", "MatMulInteger", "FusedMatMulActivation"), "product"),
    **dict.fromkeys(("Softmax", "LogSoftmax"), "softmax"),
    **dict.fromkeys(("ScatterND", "ScatterElements", "TensorScatter"), "cache"),
    **dict.fromkeys(
        ("Transpose", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Tile", "Concat", "Slice", "Split", "Identity",
         "Gather", "Flatten", "Cast"),
        "layout",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Tensors:
    """What is known of a graph's tensors: shape as text ("" where unknown), value of a constant of one number."""

    shape: Callable[[str], str]
    scalar: Callable[[str], float | None]


@dataclass(frozen=True)
class Subject:
    """What to draw. ends: tensor -> what it is called, where the walk back from `outputs` ends. The first output is
    the attention's. leaving: graph outputs on the way, with what they are called.
    """

    outputs: Mapping[str, str]
    ends: Mapping[str, str]
    leaving: Mapping[str, str] = field(default_factory=dict)
    within: Collection[str] | None = None  # tensors whose makers are drawn; None: every one's
    cache: Collection[str] = ()  # nodes that join the past and the new rows
    scope: str = ""  # what the names of emitted nodes begin with, which says nothing in a picture


class _Painter:
    def __init__(self, index: NodeIndex, tensors: Tensors, subject: Subject) -> None:
        self.index, self.tensors, self.subject = index, tensors, subject
        self.boxes: dict[str, Box] = {}
        self.lines: list[Line] = []

    def paint(self) -> Picture:
        sinks = []
        pending: list[str] = []
        for output, called in self.subject.outputs.items():
            sink = self._end(f"out {output}", output, called)
            sinks.append(sink)
            self._line(self._source(output, pending), sink, output)
        while pending:
            self._read(self.index.makers[pending.pop()], pending)
        for tensor, called in self.subject.leaving.items():
            maker = self.index.node(tensor)
            if maker is not None and node_key(maker) in self.boxes:
                self._line(node_key(maker), self._end(f"out {tensor}", tensor, called), tensor)
        return Picture(tuple(self.boxes.values()), tuple(self.lines), sinks[0])

    def _source(self, tensor: str, pending: list[str]) -> str:
        """The box that the tensor comes from; a node's is drawn, and its operands are still to be."""
        maker = self.index.node(tensor)
        named = self.subject.ends.get(tensor)
        while named is None and maker is not None and maker.op_type == "Identity":
            tensor = maker.input[0]
            maker, named = self.index.node(tensor), self.subject.ends.get(tensor)
        if named is not None or maker is None or not self._is_drawn(tensor):
            return self._end(f"in {tensor}", tensor, named or self._called(tensor))
        key = node_key(maker)
        if key not in self.boxes:
            self.boxes[key] = self._node(maker)
            pending.append(key)
        return key

    def _is_drawn(self, tensor: str) -> bool:
        within = self.subject.within
        return len(self.boxes) < BOX_LIMIT and (within is None or tensor in within)

    def _called(self, tensor: str) -> str:
        if tensor in self.index.weights:
            return "weight"
        return "from elsewhere" if tensor in self.index.makers else "input"

    def _read(self, node: onnx.NodeProto, pending: list[str]) -> None:
        for tensor in dict.fromkeys(data_operands(node)):
            if self.tensors.scalar(tensor) is None and not self._is_size(tensor):
                self._line(self._source(tensor, pending), node_key(node), tensor)

    def _is_size(self, tensor: str) -> bool:
        """A stored list of sizes, axes or indices."""
        weight = self.index.weights.get(tensor)
        if weight is not None:
            return weight.data_type == onnx.TensorProto.INT64 and tensor not in self.subject.ends
        return self.index.is_constant(tensor)

    def _node(self, node: onnx.NodeProto) -> Box:
        key = node_key(node)
        scalars = [value for tensor in data_operands(node) if (value := self.tensors.scalar(tensor)) is not None]
        told = [f"{value:.4g}" for value in scalars[:2]] + _attributes(node)
        role = "cache" if key in self.subject.cache else role_of(node)
        title = visible(node.op_type, 30)
        return Box(key, title, ", ".join(told) or self._short(key), role, node_hint(node))

    def _end(self, key: str, tensor: str, called: str) -> str:
        self.boxes[key] = Box(key, called, tail(tensor, _NAME), "tensor", visible(tensor, _HINT))
        return key

    def _short(self, name: str) -> str:
        return tail(name.removeprefix(self.subject.scope).removeprefix("active/"), _NAME)

    def _line(self, source: str, target: str, tensor: str) -> None:
        self.lines.append(Line(source, target, tensor, self.tensors.shape(tensor)))


def paint(index: NodeIndex, tensors: Tensors, subject: Subject) -> Picture:
    """The nodes that `subject.outputs` are made by, back to `subject.ends`. At most about BOX_LIMIT boxes."""
    return _Painter(index, tensors, subject).paint()


def node_key(node: onnx.NodeProto) -> str:
    """As reports name nodes: the first output tensor that has a name."""
    return str(next((output for output in node.output if output), node.name))


def role_of(node: onnx.NodeProto) -> Role:
    """What a node does in an attention."""
    if "Attention" in node.op_type:
        return "attention"
    return _ROLES.get(node.op_type, "scores")


def node_hint(node: onnx.NodeProto) -> str:
    """Operator, operands and results in full."""
    domain = f"{node.domain}::" if node.domain else ""
    reads, makes = (", ".join(visible(name, 120) for name in names if name) for names in (node.input, node.output))
    return visible(f"{domain}{node.op_type}({reads}) → {makes}", 2 * _HINT)


def shape_text(shape: Iterable[int | str | None] | None) -> str:
    """`9, q, n`: in rows of this call (q) and key rows (n = past + q)."""
    if shape is None:
        return ""
    return ", ".join("?" if dim is None else _dim(str(dim)) for dim in shape)


def _dim(text: str) -> str:
    known = {"past + queries": "n", "queries": "q", "past": "past"}
    return known.get(text) or visible(text.replace("past + queries", "n").replace("queries", "q"), 24)


def _attributes(node: onnx.NodeProto) -> list[str]:
    """The attributes that say how operands are read, in a word each."""
    told = []
    for entry in node.attribute:
        if entry.name in ("alpha", "scale", "softcap") and entry.f not in (0, 1):
            told.append(f"{entry.name} {entry.f:.4g}")
        elif entry.name in ("transA", "transB", "transBatchA", "transBatchB", "local_window_size") and entry.i > 0:
            told.append(entry.name if entry.i == 1 else f"{entry.name} {entry.i}")
        elif entry.name == "perm":
            told.append(f"perm {' '.join(map(str, entry.ints))}")
        elif entry.name == "axis":
            told.append(f"axis {entry.i}")
    return told
