"""Layout operations of a graph in the algebra of views: operands and attributes read, the result a view or a copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx

from qbpass.admission.strides import view_ops
from qbpass.admission.strides.algebra import AlgebraTrace, Held
from qbpass.admission.strides.elements import Ids, UntracedError
from qbpass.admission.strides.view import View
from qbpass.models.dataflow import attribute

Handler = Callable[[AlgebraTrace, onnx.NodeProto], None]


def source_of(trace: AlgebraTrace, node: onnx.NodeProto) -> Held:
    if node.input[0] not in trace.held:
        raise UntracedError(f"holds a {node.op_type} that mixes traced elements with values")
    return trace.held[node.input[0]]


def _layout(operation: Callable[[AlgebraTrace, onnx.NodeProto, View], View | None]) -> Handler:
    """A handler of an operation that is a view, or a copy of the elements in the order of its result."""

    def handle(trace: AlgebraTrace, node: onnx.NodeProto) -> None:
        source = source_of(trace, node)
        view = operation(trace, node, source.view)
        result = node.output[0]
        if view is not None:
            trace.held[result] = trace.viewed(node.op_type, result, source, view)
        else:
            ids = _COPIES[node.op_type](trace, node, source.ids())
            trace.held[result] = trace.copied(node.op_type, result, ids, source.roots)

    return handle


def _target(trace: AlgebraTrace, node: onnx.NodeProto, shape: Sequence[int]) -> list[int]:
    """Reshape's shape operand with its 0 and -1 worked out."""
    wanted = [int(size) for size in trace.value(node.input[1])]
    if not attribute(node, "allowzero", 0):
        wanted = [shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
    if -1 in wanted:
        known = math.prod(size for size in wanted if size != -1)
        wanted[wanted.index(-1)] = math.prod(shape) // known if known else 0
    return wanted


def _reshape(trace: AlgebraTrace, node: onnx.NodeProto, view: View) -> View | None:
    return view_ops.reshape(view, _target(trace, node, view.shape))


def _transpose(trace: AlgebraTrace, node: onnx.NodeProto, view: View) -> View:
    return view_ops.transpose(view, attribute(node, "perm", list(range(len(view.shape)))[::-1]))


def _axes_of(trace: AlgebraTrace, node: onnx.NodeProto) -> list[int] | None:
    """The axes of Squeeze and Unsqueeze: an operand since opset 13, an attribute before."""
    if len(node.input) > 1 and node.input[1]:
        return [int(axis) for axis in trace.value(node.input[1]).reshape(-1)]
    axes = attribute(node, "axes")
    return None if axes is None else list(axes)


def _unsqueeze(trace: AlgebraTrace, node: onnx.NodeProto, view: View) -> View:
    return view_ops.unsqueeze(view, _axes_of(trace, node) or [])


def _squeeze(trace: AlgebraTrace, node: onnx.NodeProto, view: View) -> View:
    return view_ops.squeeze(view, _axes_of(trace, node))


def _flatten(trace: AlgebraTrace, node: onnx.NodeProto, view: View) -> View | None:
    return view_ops.flatten(view, attribute(node, "axis", 1))


def _expand(trace: AlgebraTrace, node: onnx.NodeProto, view: View) -> View:
    return view_ops.expand(view, [int(size) for size in trace.value(node.input[1])])


def _slice(trace: AlgebraTrace, node: onnx.NodeProto, view: View) -> View:
    given = [[int(v) for v in trace.value(name).reshape(-1)] if name else None for name in node.input[1:]]
    given += [None] * (4 - len(given))
    starts, ends, axes, steps = given
    if starts is None or ends is None:
        raise UntracedError("holds a Slice without bounds")
    return view_ops.take(
        view, starts, ends, list(range(len(starts))) if axes is None else axes, steps or [1] * len(starts)
    )


def _gather(trace: AlgebraTrace, node: onnx.NodeProto, view: View) -> View | None:
    return view_ops.gather(view, trace.value(node.input[1]), attribute(node, "axis", 0))


def _tile(trace: AlgebraTrace, node: onnx.NodeProto, view: View) -> View | None:
    """One row repeated is shared; anything else is a copy."""
    repeats = [int(count) for count in trace.value(node.input[1])]
    if all(count == 1 or extent == 1 for count, extent in zip(repeats, view.shape, strict=True)):
        return view_ops.expand(view, [max(count, 1) for count in repeats]) if 0 not in repeats else None
    return None


def _identity(trace: AlgebraTrace, node: onnx.NodeProto, view: View) -> View:
    return view


_COPIES: dict[str, Callable[[AlgebraTrace, onnx.NodeProto, Ids], Ids]] = {
    "Reshape": lambda trace, node, ids: ids.reshape(_target(trace, node, ids.shape)),
    "Flatten": lambda trace, node, ids: ids.reshape(math.prod(ids.shape[: attribute(node, "axis", 1)]), -1),
    "Gather": lambda trace, node, ids: np.take(ids, trace.value(node.input[1]), axis=attribute(node, "axis", 0)),
    "Tile": lambda trace, node, ids: np.tile(ids, trace.value(node.input[1])),
}


def _split(trace: AlgebraTrace, node: onnx.NodeProto) -> None:
    source = source_of(trace, node)
    axis, count = attribute(node, "axis", 0), len(node.output)
    sizes = attribute(node, "split")
    if len(node.input) > 1 and node.input[1]:
        sizes = [int(size) for size in trace.value(node.input[1])]
    if sizes is None:
        part = -(-source.view.shape[axis] // count)
        sizes = [min(part, source.view.shape[axis] - k * part) for k in range(count)]
    for name, view in zip(node.output, view_ops.split(source.view, axis, sizes), strict=True):
        trace.held[name] = trace.viewed("Split", name, source, view)


def _concat(trace: AlgebraTrace, node: onnx.NodeProto) -> None:
    if any(name not in trace.held for name in node.input):
        raise UntracedError("holds a Concat that mixes traced elements with values")
    parts = [trace.held[name] for name in node.input]
    if len(parts) == 1:
        trace.held[node.output[0]] = trace.viewed("Concat", node.output[0], parts[0], parts[0].view)
        return
    ids = np.concatenate([part.ids() for part in parts], axis=attribute(node, "axis"))
    roots = frozenset().union(*(part.roots for part in parts))
    trace.held[node.output[0]] = trace.copied("Concat", node.output[0], ids, roots)


def _scatter(trace: AlgebraTrace, node: onnx.NodeProto) -> None:
    """Rows written into the memory they are scattered to: a run of whole rows, in order."""
    target, updates = source_of(trace, node), trace.held.get(node.input[2])
    rows = trace.value(node.input[1])
    if updates is None or attribute(node, "reduction", b"none") not in (b"none", "none"):
        raise UntracedError("holds a ScatterND that mixes traced elements with values")
    if rows.ndim != 2 or rows.shape[1] != 1:
        raise UntracedError("holds a ScatterND that does not write whole rows")
    places = view_ops.gather(target.view, rows[:, 0], 0)
    if places is None or places.shape != updates.view.shape:
        raise UntracedError("holds a ScatterND that does not write a run of rows")
    contents = target.contents.copy()
    contents[places.addresses() // places.elem_size] = updates.ids()
    result = node.output[0]
    trace.written("ScatterND", result, places, target.roots | updates.roots)
    trace.held[result] = Held(target.view, contents, target.roots | updates.roots)


LAYOUT_HANDLERS: dict[str, Handler] = {
    "Reshape": _layout(_reshape),
    "Transpose": _layout(_transpose),
    "Unsqueeze": _layout(_unsqueeze),
    "Squeeze": _layout(_squeeze),
    "Flatten": _layout(_flatten),
    "Expand": _layout(_expand),
    "Slice": _layout(_slice),
    "Gather": _layout(_gather),
    "Tile": _layout(_tile),
    "Identity": _layout(_identity),
    "Split": _split,
    "Concat": _concat,
    "ScatterND": _scatter,
}
