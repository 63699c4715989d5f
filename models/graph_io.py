"""Reading a graph without its weights, from a file that may be anything: every problem is one line, with a way out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Literal

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import external_data_helper

from qbpass.models.errors import ModelFileError
from qbpass.models.graph_nodes import check_nodes
from qbpass.models.graph_order import check_order
from qbpass.models.graph_size import check_size
from qbpass.models.stored_tensors import byte_size, check_tensors, stored_tensors

Weights = Literal["required", "ignored"]  # whether the files of external weights must be there

MAX_GRAPH_BYTES = 2**31 - 1  # protobuf's own limit

# First bytes of files that people download in place of a model.
_LOOKALIKES = {
    b"version https://git-lfs": "is a git-lfs pointer, not the model: run `git lfs pull` in its repository",
    b"<!doctype html": "is an HTML page, not a model: download the file itself, not the page that shows it",
    b"<html": "is an HTML page, not a model: download the file itself, not the page that shows it",
    b"GGUF": "is a GGUF file, not ONNX: turn it into ONNX with `qbpass export`",
    b"PK\x03\x04": "is a zip archive, not ONNX: unpack it, or export the model to ONNX",
}


def read_graph(path: Path, weights: Weights = "required") -> onnx.ModelProto:
    """The model in `path`, external weights left on disk and checked by their file's size only.

    weights: "ignored" where their files need not exist (a graph to be looked at, not run); their names are checked.
    Raises ModelFileError where the file is missing, too large, not ONNX or truncated; where the graph is empty, cyclic
    or not in topological order; where external data is missing, truncated or lies outside the model's folder.
    """
    model = _parse(path, _read_bytes(path))
    if not model.HasField("graph"):
        raise ModelFileError(f"{path} is not an ONNX model (it holds no graph): check the file, or export it again")
    if not model.graph.node:
        raise ModelFileError(f"the graph in {path} has no nodes: export the model again")
    check_graph(model, path)
    _check_external(model, path.parent, weights)
    return model


def check_graph(model: onnx.ModelProto, path: Path) -> None:
    """Raises ModelFileError where a graph is too large to be searched, or damaged: names that are no text, nodes
    without their operands, tensors without their data, no topological order.
    """
    check_size(model, path)
    check_nodes(model, path)
    check_tensors(model, path)
    check_order(model.graph, path)


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


def weight_files(model: onnx.ModelProto, folder: Path) -> dict[str, Path]:
    """Every external location the model names -> its checked path inside `folder`, in order of first use.

    Raises ModelFileError as `read_graph` does for external data.
    """
    found: dict[str, Path] = {}
    for tensor in external_tensors(model):
        location = external_entry(tensor)[0]
        if location not in found:
            found[location] = _inside(location, tensor.name, folder)
            _check_is_there(found[location], tensor.name)
    return found


def external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Tensors stored outside the graph."""
    return (tensor for tensor in stored_tensors(model) if external_data_helper.uses_external_data(tensor))


def _read_bytes(path: Path) -> bytes:
    try:
        if not path.exists():
            raise ModelFileError(f"{path} does not exist: check the path")
        if not path.is_file():
            raise ModelFileError(f"{path} is not a regular file: give the .onnx file")
        size = path.stat().st_size
        if size > MAX_GRAPH_BYTES:
            raise ModelFileError(
                f"{path} is {size / 2**30:.1f} GiB, more than the 2 GiB an ONNX file can hold: save the model with "
                "external data"
            )
        data = path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path} can't be read ({error.strerror or error}): check its permissions") from error
    if not data:
        raise ModelFileError(f"{path} is empty: download or export it again")
    return data


def _parse(path: Path, data: bytes) -> onnx.ModelProto:
    start = data[:64].lstrip()
    for prefix, problem in _LOOKALIKES.items():
        if start.lower().startswith(prefix.lower()):
            raise ModelFileError(f"{path} {problem}")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, RecursionError) as error:
        raise ModelFileError(
            f"{path} is not an ONNX model, or it is truncated or damaged: download or export it again"
        ) from error
    return model


def _natural(tensor: onnx.TensorProto, key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS):
        raise ModelFileError(
            f"initializer {tensor.name!r} has the external {key} {text[:40]!r}, which is no byte count: "
            "export the model again"
        )
    return int(text)


_MOST_DIGITS = 20  # of a 64-bit number; Python would take its time over more


def _inside(location: str, tensor: str, folder: Path) -> Path:
    """`location` as a path inside `folder`; a file from strangers must not name any other file of this machine."""
    where = f"the external data of initializer {tensor!r}"
    if PurePosixPath(location).is_absolute() or PureWindowsPath(location).drive or location.startswith("\\"):
        raise ModelFileError(
            f"{where} has the absolute path {location!r}: external data must lie in the model's folder"
        )
    if ".." in PurePosixPath(location.replace("\\", "/")).parts:
        raise ModelFileError(
            f"{where} leaves the model's folder ({location!r}): external data must lie in the model's folder"
        )
    if "\0" in location:
        raise ModelFileError(f"{where} has a path with a zero byte: export the model again")
    if "_ORT_MEM_ADDR_" in location:  # ONNX Runtime would take the offset for an address in its memory
        raise ModelFileError(f"{where} names memory, not a file: export the model again")
    path = folder / location
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
        path.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, or links in a circle
        raise ModelFileError(
            f"{where} has a path that can't be followed ({location[:80]!r}): export the model again"
        ) from error
    if not inside:
        raise ModelFileError(
            f"{where} ({location!r}) is a link out of the model's folder: put the real file into {folder} "
            "(for example `cp -L`)"
        )
    return path


def _check_is_there(path: Path, tensor: str) -> None:
    if not path.is_file():
        raise ModelFileError(
            f"the external data of initializer {tensor!r} is missing: {path} does not exist; put it beside the .onnx "
            "file"
        )


def _check_external(model: onnx.ModelProto, folder: Path, weights: Weights) -> None:
    """Each file is asked for once; with weights "ignored" only where it would lie."""
    sizes: dict[str, int] = {}
    for tensor in external_tensors(model):
        location, offset, length = external_entry(tensor)
        if location not in sizes:
            path = _inside(location, tensor.name, folder)
            if weights == "required":
                _check_is_there(path, tensor.name)
            sizes[location] = path.stat().st_size if weights == "required" else -1
        if weights == "required" and sizes[location] < offset + length:
            raise ModelFileError(
                f"{folder / location} is truncated: initializer {tensor.name!r} needs bytes up to {offset + length:,}, "
                f"the file has {sizes[location]:,}; download or export it again"
            )
