"""Tensors stored outside a graph: which they are, and the bytes of which file each one names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import onnx
from onnx import external_data_helper

from qbpass.models.errors import ModelFileError
from qbpass.models.stored_tensors import byte_size, stored_tensors

_PACKED = "prepacked_"  # ONNX Runtime's own keys, onnxruntime/core/framework/tensor_external_data_info.h
_MOST_DIGITS = 20  # of a 64-bit number; Python would take its time over more


def external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Tensors stored outside the graph."""
    return (tensor for tensor in stored_tensors(model) if external_data_helper.uses_external_data(tensor))


def external_entry(initializer: onnx.TensorProto) -> tuple[str, int, int]:
    """(location, offset, length) of an externally stored tensor; an omitted length is the one its shape and type need.

    Raises ModelFileError where the entry has no location or its numbers are not non-negative integers.
    """
    entries = {entry.key: entry.value for entry in initializer.external_data}
    if not entries.get("location"):
        raise ModelFileError(
            f"initializer {initializer.name!r} is stored outside the graph but names no file: export the model again"
        )
    if not all(isinstance(text, str) for text in entries.values()):  # bytes, where a string is not UTF-8
        raise ModelFileError(
            f"initializer {initializer.name!r} names its external data by what is no text: export the model again"
        )
    offset = _natural(initializer, "offset", entries.get("offset", "0"))
    length = _natural(initializer, "length", entries["length"]) if "length" in entries else byte_size(initializer)
    return entries["location"], offset, length


def set_external_entry(
    tensor: onnx.TensorProto, location: str, offset: int, length: int, packed: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Names other bytes for an externally stored tensor. A checksum, where it has one, is of the old ones and goes.

    packed: the `packed_entries` that belong to these bytes.
    """
    entries = {"location": location, "offset": str(offset), "length": str(length), **packed}
    del tensor.external_data[:]
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


def packed_entries(tensor: onnx.TensorProto) -> dict[str, str]:
    """Where the tensor's file holds it as kernels pack it: key -> kernel|offset;length;checksum, of each buffer."""
    return {entry.key: entry.value for entry in tensor.external_data if entry.key.startswith(_PACKED)}


def packed_ends(tensor: onnx.TensorProto) -> list[int]:
    """Where each packed buffer ends in the tensor's file. Raises ModelFileError for what is no entry of one."""
    ends = []
    for key, value in packed_entries(tensor).items():
        kernel, _, buffers = value.partition("|")
        for buffer in buffers.split("|"):
            numbers = buffer.split(";")
            if not kernel or len(numbers) != 3:
                raise ModelFileError(
                    f"initializer {tensor.name!r} has the external entry {key} {value[:40]!r}, which is no packed "
                    "weight: export the model again"
                )
            ends.append(_natural(tensor, key, numbers[0]) + _natural(tensor, key, numbers[1]))
    return ends


def _natural(tensor: onnx.TensorProto, key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS):
        raise ModelFileError(
            f"initializer {tensor.name!r} has the external {key} {text[:40]!r}, which is no byte count: "
            "export the model again"
        )
    return int(text)
