"""Is what is added to the scores a mask? A mask is 0 where a key may be read and a large negative number elsewhere.

Read off the dataflow, in these cases:
1. a constant of zeros and large negative numbers only;
2. Where(condition, a, b) with a and b masks (a scalar 0 or a large negative number is one);
3. indicator x large negative number, indicator a tensor of zeros and ones: a boolean or the attention mask input, cast,
   `1 - indicator`, products of indicators;
4. a mask x indicator, sums and minima of masks, Trilu of a mask;
5. a mask moved or broadcast (Expand, Reshape, Slice, Cast between floats, ...);
6. whatever else is worked out of sizes, positions and a mask input of ones, and holds zeros and large negative numbers
   only in every call that is traced.

Whatever else is added to the scores (slopes, learned tables, another product) is a bias.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from qbpass.admission.calls.call import CALLS
from qbpass.admission.dataflow import Flow, node_name

# exp(-1e4) is 0 in every float type, also after the largest score has been taken off
LARGE = -1.0e4
MOVES = frozenset({"Expand", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Slice", "Identity", "Tile"})
COMPARISONS = frozenset({"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"})
_DEPTH = 64


def bias_source(tensor: str, flow: Flow) -> str | None:
    """None if `tensor` is a mask; else the name of the tensor at which it stops being one."""
    return _Questions(flow).bias_source(tensor, 0)


def is_indicator(tensor: str, flow: Flow) -> bool:
    """Whether a tensor holds zeros and ones only: booleans, the attention mask input, and what keeps them so."""
    return _Questions(flow).is_indicator(tensor, 0)


class _Questions:
    """Each tensor is asked each question once: a graph may lead to one tensor by 2**200 ways."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._sources: dict[str, str | None] = {}
        self._indicators: dict[str, bool] = {}

    def bias_source(self, tensor: str, depth: int) -> str | None:
        if tensor not in self._sources:
            self._sources[tensor] = self._bias_source(tensor, depth)
        return self._sources[tensor]

    def is_indicator(self, tensor: str, depth: int) -> bool:
        if tensor not in self._indicators:
            self._indicators[tensor] = self._is_indicator(tensor, depth)
        return self._indicators[tensor]

    def _bias_source(self, tensor: str, depth: int) -> str | None:
        flow = self._flow
        value = flow.constant(tensor)
        if value is not None:
            return None if _masks_only(value) else tensor
        node = flow.producer(tensor)
        if node is None or depth > _DEPTH:
            return tensor
        worked_out = [value for trace in flow.traces if (value := trace.value(tensor)) is not None]
        if len(worked_out) == len(CALLS):  # case 6
            return None if all(map(_masks_only, worked_out)) else node_name(node)
        reads = list(node.input)
        if node.op_type == "Where":
            return self._first(reads[1:], depth)
        if node.op_type == "Mul":
            return self._product_source(reads, depth, node)
        if node.op_type in ("Add", "Min", "Concat"):
            return self._first(reads, depth)
        if node.op_type in MOVES or node.op_type == "Trilu":
            return self.bias_source(reads[0], depth + 1)
        if node.op_type == "Cast" and flow.elem_type(reads[0]) not in _INTEGERS:
            return self.bias_source(reads[0], depth + 1)
        return node_name(node)

    def _first(self, tensors: list[str], depth: int) -> str | None:
        return next((source for tensor in tensors if (source := self.bias_source(tensor, depth + 1)) is not None), None)

    def _product_source(self, reads: list[str], depth: int, node: onnx.NodeProto) -> str | None:
        for factor, other in (reads, reads[::-1]):
            if self.is_indicator(factor, depth + 1) and self.bias_source(other, depth + 1) is None:
                return None
        return node_name(node)

    def _is_indicator(self, tensor: str, depth: int) -> bool:
        flow = self._flow
        if tensor == flow.interface.attention_mask or flow.elem_type(tensor) == TensorProto.BOOL:
            return True
        value = flow.constant(tensor)
        if value is not None:
            return bool(np.all((value == 0) | (value == 1)))
        node = flow.producer(tensor)
        if node is None or depth > _DEPTH:
            return False
        reads = list(node.input)
        if node.op_type == "Sub":
            return flow.scalar(reads[0]) == 1.0 and self.is_indicator(reads[1], depth + 1)
        if node.op_type == "Where":
            return all(self.is_indicator(read, depth + 1) for read in reads[1:])
        if node.op_type in ("Mul", "Concat", "Min", "Max"):
            return all(self.is_indicator(read, depth + 1) for read in reads)
        if node.op_type in MOVES or node.op_type in ("Cast", "Trilu", "Gather", "GatherND"):
            return self.is_indicator(reads[0], depth + 1)
        return False


def _masks_only(value: np.ndarray[Any, Any]) -> bool:
    return bool(value.size) and value.dtype.kind == "f" and bool(np.all((value == 0) | (value <= LARGE)))


_INTEGERS = frozenset({TensorProto.BOOL, TensorProto.INT64, TensorProto.INT32, TensorProto.UINT8, TensorProto.INT8})


def mask_nodes(tensor: str, flow: Flow) -> list[onnx.NodeProto]:
    """The nodes that a mask's values are computed by, in topological order; sizes (Shape) are not entered."""
    found: dict[int, onnx.NodeProto] = {}
    pending = [tensor]
    while pending:
        node = flow.producer(pending.pop())
        if node is not None and node.op_type not in ("Shape", "Size"):
            position = flow.position(node.output[0])
            if position not in found:
                found[position] = node
                pending.extend(read for read in node.input if read in flow.activations)
    return [found[position] for position in sorted(found)]
