"""A unit as a small model of its own, with the frozen graph's weights by the graph's own reference."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper, numpy_helper

from qbpass.admission.dataflow import Flow
from qbpass.admission.row_units.unit import RowUnit
from qbpass.models.decoder import Decoder
from qbpass.rewrites.builder import NodeBuilder
from qbpass.rewrites.row_repair.emit import emit_repairs
from qbpass.rewrites.row_repair.first_columns import first_columns
from qbpass.rewrites.row_repair.repair import RowRepair


def native_model(frozen: Decoder, flow: Flow, unit: RowUnit) -> onnx.ModelProto:
    """Inputs: the unit's row operands. Outputs: its results. All nodes as the frozen graph has them, but for
    a very wide product's last columns (first_columns.py).
    """
    stored = {tensor.name: tensor for tensor in frozen.model.graph.initializer}
    weights = [stored[name] if name in stored else _constant(flow, name) for name in unit.shared]
    graph = helper.make_graph(
        [flow.node(name) for name in unit.nodes],
        "rows",
        [_value(flow, name) for name, _ in unit.rows],
        [_value(flow, name) for name, _ in unit.results],
        weights,
    )
    model = helper.make_model(graph, opset_imports=frozen.model.opset_import, ir_version=frozen.model.ir_version)
    return first_columns(model)


def repaired_model(frozen: Decoder, flow: Flow, unit: RowUnit, rows_per_call: int, max_queries: int) -> onnx.ModelProto:
    """The same unit in the very form that a rewritten graph has in its active phases."""
    graph = gs.import_onnx(native_model(frozen, flow, unit))
    operand, axis = unit.rows[0]
    tensors = graph.tensors()
    builder = NodeBuilder("qbpass/call")
    producers = {output.name: node for node in graph.nodes for output in node.outputs}
    repair = RowRepair("trial", (unit,), rows_per_call)
    emit_repairs(builder, (repair,), max_queries, producers, tensors, (tensors[operand], axis))
    graph.nodes.extend(builder.nodes)
    graph.cleanup().toposort()
    model: onnx.ModelProto = gs.export_onnx(graph, do_type_check=False)
    return model


def missing_weights(frozen: Decoder, unit: RowUnit) -> bool:
    """Whether weights of the unit lie in a file that is not there: a graph may be planned for without its weights."""
    wanted = set(unit.shared)
    return not all(frozen.weights.has(tensor) for tensor in frozen.model.graph.initializer if tensor.name in wanted)


def _constant(flow: Flow, name: str) -> onnx.TensorProto:
    """A value that no weight holds and that each call has nevertheless: worked out of constant sizes."""
    value = flow.constant(name)
    if value is None:
        producer = flow.producer(name)
        raise LookupError(f"{name!r} ({producer.op_type if producer else 'input'}) has no value that is known")
    return numpy_helper.from_array(np.ascontiguousarray(value), name)


def _value(flow: Flow, name: str) -> onnx.ValueInfoProto:
    shape = [extent.value() if extent is not None else None for extent in flow.extents(name) or ()]
    return helper.make_tensor_value_info(name, flow.elem_type(name), shape)
