"""Which element of a source tensor lands where in a sink tensor, found by running the path between them on a tiny call.

The nodes between the two tensors, and those that compute their sizes, are run one by one by ONNX's reference evaluator
on a source filled with 0, 1, 2, ...; what arrives at the sink is the path's index map.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from qbpass.admission.calls.call import Call
from qbpass.admission.calls.call_inputs import TensorInCall, of_value
from qbpass.admission.calls.node_types import output_types
from qbpass.admission.calls.node_values import NodeValues
from qbpass.admission.dataflow import Flow, node_name
from qbpass.admission.factors import casts_floats, constant_factor, element_steps
from qbpass.models.dataflow import attribute
from qbpass.models.graph_order import subgraphs

# Operators that put values in other places and change none of them.
MOVES = frozenset(
    {
        *("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten", "Expand", "Tile", "Identity"),
        *("Concat", "Slice", "Split", "Gather", "Shape"),
    }
)
_INTEGERS = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL})
CLOSURE_LIMIT = 128  # nodes; a path with its size arithmetic has about 20
MAP_LIMIT = 1 << 24  # elements of one tensor: float32 counts no further


class PathError(Exception):
    """The path has no index map that can be found this way; `str(error)` says why."""


def index_map(flow: Flow, source: str, sink: str, call: Call) -> np.ndarray[Any, Any]:
    """The sink for a call of that size, holding at each place the flat index of the source element that lands there.

    Scalar factors (a scale folded into the keys) and casts between float types are left out: they move nothing. Raises
    PathError.
    """
    size = call_shape(flow, source, call)
    if math.prod(size) > MAP_LIMIT:
        raise PathError(f"starts from {math.prod(size):,} elements, more than the {MAP_LIMIT:,} that are followed")
    values = np.arange(math.prod(size), dtype=np.float32).reshape(size)
    if source == sink:
        return values.astype(np.int64)
    nodes, known = _cut_out(flow, source, sink, call)
    known[source] = of_value(values)
    runner = NodeValues(list(flow.model.opset_import), flow.memory.evaluators, flow.memory.maps, MAP_LIMIT)
    opsets = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in flow.model.opset_import}
    for node in nodes:
        made = runner.outputs(node, known, output_types(node, known, opsets))
        if made is None:
            where = f"{call.queries} queries behind {call.past} rows"
            raise PathError(f"can't be run for {where}: {node_name(node)!r} ({node.op_type}) fails or is too large")
        known.update((name, of_value(value)) for name, value in zip(node.output, made, strict=True) if name)
    return np.asarray(known[sink].value).astype(np.int64)


def _cut_out(flow: Flow, source: str, sink: str, call: Call) -> tuple[list[onnx.NodeProto], dict[str, TensorInCall]]:
    """(nodes between the two in order, the constants that they read)."""
    moved = {node_name(node) for node in flow.between(source, sink)}
    nodes: dict[int, onnx.NodeProto] = {}
    constants: dict[str, TensorInCall] = {}
    pending = [sink]
    while pending:
        tensor = pending.pop()
        position = flow.position(tensor)
        if tensor in ("", source) or tensor in constants or position in nodes:
            continue
        node = flow.producer(tensor)
        if node is None or node.op_type == "Constant":
            constants[tensor] = _constant(flow, tensor)
            continue
        if len(nodes) >= CLOSURE_LIMIT:
            raise PathError("depends on more than sizes of the call")
        if node_name(node) not in moved and node.op_type == "Shape":
            constants[tensor] = _shape_constant(flow, node, call)
            continue
        nodes[position] = _movable(flow, node) if node_name(node) in moved else node
        pending.extend(nodes[position].input)
    return [nodes[position] for position in sorted(nodes)], constants


def _movable(flow: Flow, node: onnx.NodeProto) -> onnx.NodeProto:
    """The node itself if it only moves values or computes sizes; its identity if it is a scalar factor or a cast."""
    if flow.elem_type(node.output[0]) in _INTEGERS or node.op_type in MOVES:
        if node.domain not in ("", "ai.onnx") or any(subgraphs(node)):
            raise PathError(f"has a {node.op_type} whose moves are not known")
        return node
    if constant_factor(node, flow) is None and not casts_floats(node, flow):
        raise PathError(f"has a {node.op_type} that changes values ({node_name(node)})")
    (step,) = element_steps((node_name(node),), flow)
    return helper.make_node("Identity", [step.kept], list(node.output))


def _constant(flow: Flow, tensor: str) -> TensorInCall:
    value = flow.constant(tensor)
    if value is None:
        raise PathError(f"depends on {tensor!r}, which is no size of the call and no small constant")
    return of_value(value)


def _shape_constant(flow: Flow, node: onnx.NodeProto, call: Call) -> TensorInCall:
    """What a Shape node outside the path returns in this call: the tensor it reads is not computed."""
    sizes = call_shape(flow, node.input[0], call)
    start, end = attribute(node, "start", 0), attribute(node, "end", len(sizes))
    return of_value(np.array(sizes[start:end], dtype=np.int64))


def call_shape(flow: Flow, tensor: str, call: Call) -> list[int]:
    """A tensor's shape in a call of that size. Raises PathError where a dimension is neither constant nor known."""
    shape = flow.trace(call).shape(tensor)
    if shape is None:
        raise PathError(f"depends on the shape of {tensor!r}, whose rank is unknown")
    if None in shape:
        raise PathError(f"depends on the shape of {tensor!r}, whose dimension {shape.index(None)} is unknown")
    return [size for size in shape if size is not None]
