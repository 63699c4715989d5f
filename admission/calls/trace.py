"""One call of a graph: the shape and type of every tensor, and the values of those that depend on sizes alone.

No weight is read and no product is computed: what comes out holds for any weights. A tensor's declared shape counts
only where nothing computes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from qbpass.admission.calls.call import Call
from qbpass.admission.calls.call_inputs import CallShape, TensorInCall, call_inputs
from qbpass.admission.calls.node_types import UNKNOWN, output_types
from qbpass.admission.calls.node_values import NodeValues
from qbpass.models.interface import Interface

SMALL_CONSTANT = 4096  # elements of an initializer whose value is looked at
MASK_CONSTANT = 1 << 24  # elements of a boolean one: a causal mask of 4,096 positions, as older models store it


class CallTrace:
    """What every tensor of a graph is in one call."""

    def __init__(self, model: onnx.ModelProto, interface: Interface, call: Call) -> None:
        self.call = call
        self._graph = model.graph
        self._opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
        self._values = NodeValues(list(model.opset_import))
        inputs, self.symbols = call_inputs(model.graph, interface, call)
        self._declared = _declared(model.graph, self.symbols)
        self.tensors: dict[str, TensorInCall] = {init.name: _weight(init) for init in model.graph.initializer}
        self.tensors.update(inputs)
        for node in model.graph.node:
            self._trace(node)

    def shape(self, tensor: str) -> CallShape | None:
        return self.tensors.get(tensor, UNKNOWN).shape

    def elem_type(self, tensor: str) -> int:
        return self.tensors.get(tensor, UNKNOWN).elem_type

    def value(self, tensor: str) -> np.ndarray[Any, Any] | None:
        return self.tensors.get(tensor, UNKNOWN).value

    def _trace(self, node: onnx.NodeProto) -> None:
        if node.op_type == "Constant":
            for name in node.output:
                value = _constant(node)
                self.tensors[name] = UNKNOWN if value is None else _of_value(value)
            return
        types = output_types(node, self.tensors, self._opsets)
        types = [self._completed(name, found) for name, found in zip(node.output, types, strict=True)]
        values = self._values.outputs(node, self.tensors, types)
        for index, name in enumerate(node.output):
            if name:
                found = types[index]
                value = None if values is None or index >= len(values) else values[index]
                self.tensors[name] = found if value is None else _of_value(value)

    def _completed(self, name: str, found: TensorInCall) -> TensorInCall:
        """What is not computed is taken from the file's own declaration."""
        declared = self._declared.get(name)
        if declared is None or (found.elem_type and found.shape is not None and None not in found.shape):
            return found
        shape = declared.shape
        if found.shape is not None:
            same_rank = shape is not None and len(shape) == len(found.shape)
            shape = (
                tuple(a if a is not None else b for a, b in zip(found.shape, shape or (), strict=True))
                if same_rank
                else found.shape
            )
        return TensorInCall(found.elem_type or declared.elem_type, shape)


def _of_value(value: np.ndarray[Any, Any]) -> TensorInCall:
    return TensorInCall(int(onnx.helper.np_dtype_to_tensor_dtype(value.dtype)), tuple(value.shape), value)


def _weight(init: TensorProto) -> TensorInCall:
    limit = MASK_CONSTANT if init.data_type == TensorProto.BOOL else SMALL_CONSTANT
    small = init.data_location != TensorProto.EXTERNAL and np.prod(init.dims, dtype=object) <= limit
    value = numpy_helper.to_array(init) if small else None
    return TensorInCall(init.data_type, tuple(init.dims), value)


def _constant(node: onnx.NodeProto) -> np.ndarray[Any, Any] | None:
    for entry in node.attribute:
        if entry.name == "value":
            small = entry.t.data_location != TensorProto.EXTERNAL
            return numpy_helper.to_array(entry.t) if small else None
        if entry.name in ("value_int", "value_ints"):
            return np.array(onnx.helper.get_attribute_value(entry), np.int64)
        if entry.name in ("value_float", "value_floats"):
            return np.array(onnx.helper.get_attribute_value(entry), np.float32)
    return None


def _declared(graph: onnx.GraphProto, symbols: dict[str, int]) -> dict[str, TensorInCall]:
    def size(dim: onnx.TensorShapeProto.Dimension) -> int | None:
        if dim.HasField("dim_value"):
            return int(dim.dim_value)
        parts = [symbols.get(part.strip()) for part in dim.dim_param.split("+")]
        return None if None in parts else sum(part for part in parts if part is not None)

    found = {}
    for value in (*graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        shape = tuple(size(dim) for dim in tensor.shape.dim) if tensor.HasField("shape") else None
        found[value.name] = TensorInCall(tensor.elem_type, shape)
    return found
