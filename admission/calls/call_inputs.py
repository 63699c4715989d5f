"""What a decoder's inputs are in one call: shapes for all of them, values for the mask and the positions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from qbpass.admission.calls.call import Call
from qbpass.models.interface import Interface

CallShape = tuple[int | None, ...]

#: Elements of the largest value that is worked out.
VALUE_LIMIT = 1 << 19
_NUMBERS = frozenset(
    {
        *(TensorProto.BOOL, TensorProto.INT64, TensorProto.INT32, TensorProto.INT16, TensorProto.INT8),
        *(TensorProto.UINT64, TensorProto.UINT32, TensorProto.UINT16, TensorProto.UINT8),
        *(TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE),
    }
)


@dataclass(frozen=True)
class TensorInCall:
    """Element type, shape (None where a dimension is unknown; None altogether where the rank is), value if known."""

    elem_type: int
    shape: CallShape | None
    value: np.ndarray[Any, Any] | None = None


def of_value(value: np.ndarray[Any, Any]) -> TensorInCall:
    """A tensor whose value is known."""
    return TensorInCall(int(helper.np_dtype_to_tensor_dtype(value.dtype)), tuple(value.shape), value)


def call_inputs(
    graph: onnx.GraphProto, interface: Interface, call: Call
) -> tuple[dict[str, TensorInCall], dict[str, int]]:
    """Every graph input that is no initializer, and the sizes of the symbols that their shapes name.

    The batch is 1; a symbol the interface does not explain gets a size of its own in each call, so that it is never
    taken for a constant or for a number of rows.
    """
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    symbols = _symbols(inputs, interface, call)
    found = {}
    for value in inputs:
        tensor = value.type.tensor_type
        shape = None
        if tensor.HasField("shape"):
            shape = tuple(_size(dim, symbols, call) for dim in tensor.shape.dim)
        found[value.name] = TensorInCall(tensor.elem_type, shape, _value(value.name, shape, tensor, interface, call))
    return found, symbols


def _symbols(inputs: list[onnx.ValueInfoProto], interface: Interface, call: Call) -> dict[str, int]:
    declared = {value.name: value.type.tensor_type.shape.dim for value in inputs}
    ids = declared.get(interface.input_ids or "", ())
    rows = ids[1].dim_value if len(ids) > 1 and ids[1].HasField("dim_value") else call.queries
    axes: dict[tuple[str | None, int], int] = {
        (interface.input_ids, 0): 1,
        (interface.input_ids, 1): call.queries,
        (interface.position_ids, 1): call.queries,
        (interface.attention_mask, 0): 1,
    }
    for pair in interface.kv:
        for past in (pair.past_key, pair.past_value):
            stacked = len(declared.get(past or "", ())) == 5  # (2, batch, heads, past, d): keys and values in one
            axes[past, 1 if stacked else 0] = 1
            axes[past, 3 if stacked else 2] = call.past
    # The mask comes last: its width may carry the past's own symbol (a static cache) or one of its own.
    axes[interface.attention_mask, 1] = call.past + rows
    symbols: dict[str, int] = {}
    for (name, axis), size in axes.items():
        dims = declared.get(name or "", ())
        if axis < len(dims) and dims[axis].dim_param:
            symbols.setdefault(dims[axis].dim_param, size)
    return symbols


def _size(dim: onnx.TensorShapeProto.Dimension, symbols: dict[str, int], call: Call) -> int | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    if not dim.dim_param:
        return None
    if dim.dim_param not in symbols:
        sizes = [symbols.get(part.strip()) for part in dim.dim_param.split("+")]
        known = [size for size in sizes if size is not None]
        symbols[dim.dim_param] = sum(known) if len(known) == len(sizes) else _own_size(len(symbols), call)
    return symbols[dim.dim_param]


def _own_size(number: int, call: Call) -> int:
    """Another size for each symbol and call, not linear in the call's rows."""
    return 17 * (2 * call.queries * call.past + 1) + number


def _value(
    name: str, shape: CallShape | None, tensor: onnx.TypeProto.Tensor, interface: Interface, call: Call
) -> np.ndarray[Any, Any] | None:
    sizes = [size for size in shape or () if size is not None]
    if shape is None or len(sizes) != len(shape) or math.prod(sizes) > VALUE_LIMIT or tensor.elem_type not in _NUMBERS:
        return None
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if name == interface.attention_mask and len(sizes) == 2:
        return np.ones(sizes, dtype)
    if name == interface.position_ids and len(sizes) == 2 and sizes[1] == call.queries:
        return np.arange(call.past, call.extent, dtype=dtype)[None].repeat(sizes[0], axis=0)
    return None
