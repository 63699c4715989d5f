"""Fewer nodes for the same mathematics: at one row a call a decoder spends a third of its time between its products.

Exporters spell out RMS norms, rotary embeddings and NaN guards, in a form that ONNX Runtime's own fusions miss. The
fused operators round otherwise, which a draft may. A pattern that is not met exactly is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from qbpass.rewrites.builder import NodeBuilder

MICROSOFT = "com.microsoft"


def make_lean(graph: gs.Graph, widths: Mapping[str, int]) -> None:
    """In place, for a graph of one row a call. widths: d of tensors (1, heads, 1, d), by name."""
    builder = NodeBuilder("qbpass/lean")
    _drop_nan_guards(graph)
    known = dict(widths)
    _drop_identities(graph, known)
    _fuse_rotary(graph, builder, known)
    _fuse_norms(graph, builder)
    _drop_turns(graph, builder, known)
    graph.nodes.extend(builder.nodes)
    _join_reshapes(graph)
    for number, constant in enumerate(builder.constants.values()):
        constant.name = f"{builder.scope}/const/{number}"
    graph.cleanup().toposort()


def _only(tensor: Any, op: str) -> gs.Node | None:
    """The producer of a tensor, where it is an `op`."""
    node = tensor.inputs[0] if getattr(tensor, "inputs", None) else None
    return node if node is not None and node.op == op else None


def _number(tensor: Any) -> float | None:
    """The value of a constant of one element."""
    if not isinstance(tensor, gs.Constant) or int(np.prod(tensor.shape)) != 1:
        return None
    return float(np.asarray(tensor.values).reshape(()))


def _replace(old: Any, new: Any, graph: gs.Graph) -> None:
    """Every reader of `old` reads `new`; an output of the graph keeps its name."""
    for reader in list(old.outputs):
        for index, tensor in enumerate(reader.inputs):
            if tensor is old:
                reader.inputs[index] = new
    graph.outputs = [new if tensor is old else tensor for tensor in graph.outputs]


def _drop_nan_guards(graph: gs.Graph) -> None:
    """Where(IsNaN(x), c, x) is x: a row that attends to itself has no NaN."""
    for node in list(graph.nodes):
        if node.op == "Where" and (test := _only(node.inputs[0], "IsNaN")) and test.inputs[0] is node.inputs[2]:
            _replace(node.outputs[0], node.inputs[2], graph)


def _drop_identities(graph: gs.Graph, known: dict[str, int]) -> None:
    for node in graph.nodes:
        if node.op == "Identity":
            if node.outputs[0].name in known:
                known[node.inputs[0].name] = known[node.outputs[0].name]
            _replace(node.outputs[0], node.inputs[0], graph)


def _drop_turns(graph: gs.Graph, builder: NodeBuilder, known: dict[str, int]) -> None:
    """A transpose that moves the one row past the heads moves nothing in memory: it is a reshape."""
    for node in list(graph.nodes):
        if node.op != "Transpose" or list(node.attrs.get("perm", [])) != [0, 2, 1, 3]:
            continue
        source, target = node.inputs[0], node.outputs[0]
        if source.name not in known and target.name not in known:
            continue
        heads_first = source.name in known
        width = known[source.name if heads_first else target.name]
        shape = builder.ints(1, 1, -1, width) if heads_first else builder.ints(1, -1, 1, width)
        node.outputs.clear()
        builder.nodes.append(gs.Node("Reshape", f"{target.name}/turned", inputs=[source, shape], outputs=[target]))


def _join_reshapes(graph: gs.Graph) -> None:
    """A reshape of a reshape is the second alone, where that names every axis."""
    for node in graph.nodes:
        if node.op != "Reshape" or not isinstance(node.inputs[1], gs.Constant) or 0 in node.inputs[1].values:
            continue
        while (before := _only(node.inputs[0], "Reshape")) is not None:
            node.inputs[0] = before.inputs[0]


def _fuse_rotary(graph: gs.Graph, builder: NodeBuilder, known: dict[str, int]) -> None:
    """x * cos + concat(-x2, x1) * sin, with x = (x1, x2), is RotaryEmbedding at position 0 of a table of one row.

    What it gives has the shape of what it takes: `known` grows by both.
    """
    tables: dict[tuple[str, int], Any] = {}
    for node in list(graph.nodes):
        found = _rotary(node)
        if found is None:
            continue
        x, cos, sin, half = found
        halves = [_first_half(builder, tables, table, half) for table in (cos, sin)]
        name = node.outputs[0].name
        position = builder._constant(("s2",), np.zeros((1, 1), np.int64))
        turned = builder.node(
            "RotaryEmbedding", [x, position, *halves], f"{name}/rotary", domain=MICROSOFT, dtype=node.outputs[0].dtype
        )
        if name in known:
            known[x.name] = known[turned.name] = known[name]
        _replace(node.outputs[0], turned, graph)


def _first_half(builder: NodeBuilder, tables: dict[tuple[str, int], Any], table: Any, half: int) -> Any:
    """(1, half) of a table whose last axis repeats its first half."""
    key = (table.name, half)
    if key not in tables:
        flat = builder.reshape(table, builder.ints(1, 2 * half), f"{table.name}/flat")
        bounds = (builder.ints(0), builder.ints(half), builder.ints(1))
        tables[key] = builder.node("Slice", [flat, *bounds], f"{table.name}/half", dtype=np.float32)
    return tables[key]


def _rotary(node: gs.Node) -> tuple[Any, Any, Any, int] | None:
    """(x, cos, sin, half the width) of the last Add of a rotary embedding by halves."""
    if node.op != "Add" or node.outputs[0].dtype != np.float32:
        return None
    for plain, turned in (node.inputs, node.inputs[::-1]):
        left, right = _only(plain, "Mul"), _only(turned, "Mul")
        if left is None or right is None:
            continue
        for joined, sin in (right.inputs, right.inputs[::-1]):
            halves = _halves(joined)
            if halves is None:
                continue
            x, half = halves
            if x in left.inputs:
                cos = left.inputs[1] if left.inputs[0] is x else left.inputs[0]
                return x, cos, sin, half
    return None


def _halves(joined: Any) -> tuple[Any, int] | None:
    """(x, half) of concat(-x2, x1) over the last axis."""
    concat = _only(joined, "Concat")
    if concat is None or len(concat.inputs) != 2 or concat.attrs.get("axis") not in (-1, 3):
        return None
    negated = _only(concat.inputs[0], "Neg")
    split = _only(concat.inputs[1], "Split")
    if negated is None or split is None or len(split.outputs) != 2:
        return None
    if split.attrs.get("axis", 0) not in (-1, 3) or negated.inputs[0] is not split.outputs[1]:
        return None
    if (
        concat.inputs[1] is not split.outputs[0]
        or len(split.inputs) < 2
        or not isinstance(split.inputs[1], gs.Constant)
    ):
        return None
    sizes = [int(size) for size in split.inputs[1].values]
    return (split.inputs[0], sizes[0]) if len(sizes) == 2 and sizes[0] == sizes[1] else None


def _fuse_norms(graph: gs.Graph, builder: NodeBuilder) -> None:
    for node in list(graph.nodes):
        found = _norm(node)
        if found is None:
            continue
        x, weight, epsilon = found
        name, dtype = node.outputs[0].name, node.outputs[0].dtype
        normed = gs.Variable(f"{builder.scope}/{name}/norm", dtype=dtype)
        added = _only(x, "Add")
        if added is not None and not any(isinstance(tensor, gs.Constant) for tensor in added.inputs):
            total = gs.Variable(f"{builder.scope}/{name}/sum", dtype=dtype)
            empty = gs.Variable.empty()
            fused = gs.Node(
                "SkipSimplifiedLayerNormalization",
                normed.name,
                attrs={"epsilon": epsilon},
                inputs=[*added.inputs, weight],
                outputs=[normed, empty, gs.Variable.empty(), total],
                domain=MICROSOFT,
            )
            _replace(x, total, graph)
        else:
            attrs = {"epsilon": epsilon, "axis": -1, "stash_type": 1}
            fused = gs.Node("SimplifiedLayerNormalization", normed.name, attrs, [x, weight], [normed])
        builder.nodes.append(fused)
        _replace(node.outputs[0], normed, graph)


def _norm(node: gs.Node) -> tuple[Any, Any, float] | None:
    """(x, weight, epsilon) of the last Mul of an RMS norm over the last axis of x, (1, 1, width)."""
    if node.op != "Mul" or node.outputs[0].dtype != np.float32:
        return None
    for weight, scaled in (node.inputs, node.inputs[::-1]):
        if not isinstance(weight, gs.Constant) or len(weight.shape) != 1:
            continue
        for x, root in _scaled(_only(scaled, "Mul")):
            epsilon = _root_of_square(x, root)
            if epsilon is not None:
                return x, weight, epsilon
    return None


def _scaled(node: gs.Node | None) -> Iterator[tuple[Any, Any]]:
    if node is not None:
        yield from (tuple(node.inputs), tuple(node.inputs[::-1]))


def _root_of_square(x: Any, root: Any) -> float | None:
    """epsilon, where `root` is 1 / sqrt(mean(x * x) + epsilon)."""
    inverse = _only(root, "Reciprocal")
    square_root = None if inverse is None else _only(inverse.inputs[0], "Sqrt")
    shifted = None if square_root is None else _only(square_root.inputs[0], "Add")
    if shifted is None:
        return None
    for mean, shift in (shifted.inputs, shifted.inputs[::-1]):
        epsilon, reduced = _number(shift), _only(mean, "ReduceMean")
        if epsilon is None or reduced is None or not _last_axis(reduced):
            continue
        power = _only(reduced.inputs[0], "Pow")
        if power is not None and power.inputs[0] is x and _number(power.inputs[1]) == 2.0:
            return epsilon
    return None


def _last_axis(reduced: gs.Node) -> bool:
    """Over the last axis alone, which is kept."""
    axes = reduced.attrs.get("axes")
    if axes is None and len(reduced.inputs) > 1 and isinstance(reduced.inputs[1], gs.Constant):
        axes = [int(axis) for axis in reduced.inputs[1].values]
    return axes is not None and list(axes) in ([-1], [2]) and bool(reduced.attrs.get("keepdims", 1))
