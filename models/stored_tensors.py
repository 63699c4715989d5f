"""The tensors that a file stores: does each hold what its shape and type need? Readers may then take it at its word."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from onnx import TensorProto, external_data_helper

from qbpass.models.errors import ModelFileError

MAX_RANK = 32  # what numpy before version 2 holds

# Types that are packed; the last two, of the newest onnx, have an entry of int32_data for each element all the same.
_PACKED_BITS = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6}
_BITS: dict[int, int] = {
    getattr(TensorProto, name): bits for name, bits in _PACKED_BITS.items() if hasattr(TensorProto, name)
}
# Types with a field of their own (onnx.proto); all others of at most 32 bits lie in int32_data.
_FIELDS: dict[int, str] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.COMPLEX64: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.COMPLEX128: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT64: "uint64_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.STRING: "string_data",
}
_COMPLEX: frozenset[int] = frozenset({TensorProto.COMPLEX64, TensorProto.COMPLEX128})  # two entries for each element


def stored_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Initializers, sparse ones and attributes: of the graph, its bodies, its functions and its training graphs."""
    yield from _of_graph(model.graph)
    for info in model.training_info:
        yield from _of_graph(info.initialization)
        yield from _of_graph(info.algorithm)
    for function in model.functions:
        yield from attribute_tensors(function.attribute_proto)
        for node in function.node:
            yield from attribute_tensors(node.attribute)


def _of_graph(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from attribute_tensors(node.attribute)


def attribute_tensors(attributes: Iterable[onnx.AttributeProto]) -> Iterator[TensorProto]:
    """Of a node: its tensors, sparse ones, and those of its bodies."""
    for attribute in attributes:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices) if sparse.HasField("values") else ()
        for body in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
            yield from _of_graph(body)


def check_tensors(model: onnx.ModelProto, path: Path) -> None:
    """Raises ModelFileError where a tensor has no known type, no possible shape, or more or less data than they need.

    What lies outside the graph is looked at by its reader.
    """
    for tensor in stored_tensors(model):
        problem = _problem(tensor)
        if problem is not None:
            raise ModelFileError(f"tensor {tensor.name!r} in {path} {problem}: download or export it again")


def _problem(tensor: TensorProto) -> str | None:
    if tensor.data_type == TensorProto.UNDEFINED or tensor.data_type not in TensorProto.DataType.values():
        return f"has the unknown data type {tensor.data_type}"
    if len(tensor.dims) > MAX_RANK:
        return f"has {len(tensor.dims)} axes, more than the {MAX_RANK} that can be read"
    if any(dim < 0 for dim in tensor.dims):
        return f"has a negative dimension ({min(tensor.dims)})"
    if tensor.HasField("segment"):
        return "is a segment of a tensor, which nobody writes"
    if external_data_helper.uses_external_data(tensor):
        return None
    return _missing(tensor)


def _missing(tensor: TensorProto) -> str | None:
    needed = math.prod(tensor.dims)
    if tensor.data_type != TensorProto.STRING and (tensor.HasField("raw_data") or not needed):
        held, needed, unit = len(tensor.raw_data), byte_size(tensor), "bytes"
    else:
        held, unit = len(getattr(tensor, _FIELDS.get(tensor.data_type, "int32_data"))), "entries"
        bits = _BITS.get(tensor.data_type, 8)
        needed = needed * (1 + (tensor.data_type in _COMPLEX)) if bits > 4 else -(-needed * bits // 8)
    return None if held == needed else f"holds {held:,} {unit}, its shape and type need {needed:,}"


def byte_size(tensor: TensorProto) -> int:
    """Bytes that a tensor's shape and type need. Raises ModelFileError for a type that is not known."""
    bits = _BITS.get(tensor.data_type)
    if bits is None:
        try:
            bits = 8 * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
        except KeyError as error:
            raise ModelFileError(
                f"initializer {tensor.name!r} has the unknown data type {tensor.data_type}: export the model again"
            ) from error
    return int(-(-math.prod(tensor.dims) * bits // 8))
