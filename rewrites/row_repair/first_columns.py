"""A very wide quantized product, tried on its first columns: a vocabulary's head alone is larger than all else tried.

Each column is a product of its own, and a kernel that computes rows in groups does so in every column. What is left out
can hide a difference, never make one: a trial proves nothing true, of whatever width.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import external_data_helper, numpy_helper

from qbpass.models.external_data import external_entry, set_external_entry

#: Weights of one product that are tried: those of a small model's head, and of the widest layers of large models.
MOST_WEIGHTS = 1 << 26
_BY_COLUMN = (1, 2, 3, 5)  # of MatMulNBits: packed weights, scales, zero points, bias; 4 is an order of the width


def first_columns(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model of one MatMulNBits with at most MOST_WEIGHTS of its weights; any other model as it is.

    Its tensors store one column behind the other, so the first lie at their beginning.
    """
    if not columns_left_out(model.graph.node):
        return model
    narrow = onnx.ModelProto()
    narrow.CopyFrom(model)
    node = narrow.graph.node[0]
    by_column = {node.input[place] for place in _BY_COLUMN if place < len(node.input) and node.input[place]}
    attribute, most = _attribute(node, "N"), _most_columns(node)
    assert attribute is not None
    stored = {tensor.name: tensor for tensor in narrow.graph.initializer}
    if not by_column <= stored.keys() or any(stored[name].dims[0] % attribute.i for name in by_column):
        return model
    for name in by_column:
        _cut(stored[name], stored[name].dims[0] // attribute.i * most)
    attribute.i = most
    for output in narrow.graph.output:
        output.type.tensor_type.shape.dim[-1].dim_value = most
    return narrow


def columns_left_out(nodes: Sequence[onnx.NodeProto]) -> int:
    """How many columns of a unit of those nodes are not tried."""
    if len(nodes) != 1 or nodes[0].op_type != "MatMulNBits":
        return 0
    columns = _attribute(nodes[0], "N")
    return 0 if columns is None else max(columns.i - _most_columns(nodes[0]), 0)


def _most_columns(node: onnx.NodeProto) -> int:
    """A multiple of 64: kernels take columns in groups."""
    rows = _attribute(node, "K")
    return max(MOST_WEIGHTS // max(1, 1 if rows is None else rows.i) // 64 * 64, 64)


def _attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto | None:
    return next((attribute for attribute in node.attribute if attribute.name == name), None)


def _cut(tensor: onnx.TensorProto, length: int) -> None:
    """Keeps the first `length` entries of axis 0."""
    if external_data_helper.uses_external_data(tensor):
        location, offset, size = external_entry(tensor)
        set_external_entry(tensor, location, offset, size // tensor.dims[0] * length)
        tensor.dims[0] = length
    else:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:length], tensor.name))
