"""One call of a graph: the shape and type of every tensor, and the values of those that depend on sizes alone.

No weight is read and no product is computed: what comes out holds for any weights. A tensor's declared shape counts
only where nothing computes it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from qbpass.admission.calls.call import Call
from qbpass.admission.calls.call_inputs import CallShape, TensorInCall, call_inputs, of_value
from qbpass.admission.calls.memory import Memory
from qbpass.admission.calls.node_types import UNKNOWN, output_types
from qbpass.admission.calls.node_values import NodeValues
from qbpass.models.interface import Interface

SMALL_CONSTANT = 4096  # elements of a stored tensor whose value is looked at
MASK_CONSTANT = 1 << 24  # elements of a boolean one: a causal mask of 4,096 positions, as older models store it


class CallTrace:
    """What every tensor of a graph is in one call."""

    def __init__(self, model: onnx.ModelProto, interface: Interface, call: Call, memory: Memory | None = None) -> None:
        """memory: what traces of the same graph have in common."""
        self.call = call
        self._memory = Memory() if memory is None else memory
        self._graph = model.graph
        self._opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
        self._values = NodeValues(list(model.opset_import), self._memory.evaluators, self._memory.values)
        inputs, self.symbols = call_inputs(model.graph, interface, call)
        self._declared = _declared(model.graph, self.symbols)
        self.tensors: dict[str, TensorInCall] = {init.name: _stored(init) for init in model.graph.initializer}
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
            self.tensors.update((name, _constant(node)) for name in node.output)
            return
        types = output_types(node, self.tensors, self._opsets, self._memory)
        values = self._values.outputs(node, self.tensors, types)
        for index, name in enumerate(node.output):
            if name:
                value = None if values is None or index >= len(values) else values[index]
                self.tensors[name] = self._completed(name, types[index]) if value is None else of_value(value)

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


def _stored(tensor: TensorProto) -> TensorInCall:
    """Of an initializer or a Constant. Only numbers have a value here, and only few of them."""
    limit = MASK_CONSTANT if tensor.data_type == TensorProto.BOOL else SMALL_CONSTANT
    small = tensor.data_location != TensorProto.EXTERNAL and math.prod(tensor.dims) <= limit
    value = numpy_helper.to_array(tensor) if small and tensor.data_type != TensorProto.STRING else None
    return TensorInCall(tensor.data_type, tuple(tensor.dims), value)


def _constant(node: onnx.NodeProto) -> TensorInCall:
    for entry in node.attribute:
        if entry.name == "value" and entry.HasField("t"):
            return _stored(entry.t)
        if entry.name in ("value_int", "value_ints"):
            return of_value(np.array(onnx.helper.get_attribute_value(entry), np.int64))
        if entry.name in ("value_float", "value_floats"):
            return of_value(np.array(onnx.helper.get_attribute_value(entry), np.float32))
    return UNKNOWN


def _declared(graph: onnx.GraphProto, symbols: dict[str, int]) -> dict[str, TensorInCall]:
    def size(dim: onnx.TensorShapeProto.Dimension) -> int | None:
        if dim.HasField("dim_value"):
            return int(dim.dim_value) if dim.dim_value >= 0 else None
        parts = [symbols.get(part.strip()) for part in dim.dim_param.split("+")]
        return None if None in parts else sum(part for part in parts if part is not None)

    found = {}
    for value in (*graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        shape = tuple(size(dim) for dim in tensor.shape.dim) if tensor.HasField("shape") else None
        found[value.name] = TensorInCall(tensor.elem_type, shape)
    return found
