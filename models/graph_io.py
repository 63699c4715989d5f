"""Reading a graph without its weights, from a file that may be anything: every problem is one line, with a way out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from qbpass.models.errors import ModelFileError
from qbpass.models.graph_nodes import check_nodes
from qbpass.models.graph_order import check_order
from qbpass.models.graph_size import check_size
from qbpass.models.stored_tensors import check_tensors
from qbpass.models.weight_sources import WeightSources, check_external

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


def read_graph(
    path: Path, weights: Weights = "required", elsewhere: Mapping[str, Path] | None = None
) -> onnx.ModelProto:
    """The model in `path`, external weights left on disk and checked by their file's size only.

    weights: "ignored" where their files need not exist (a graph to be looked at, not run); their names are checked.
    elsewhere: the folders of those locations that lie in another folder than the file.
    Raises ModelFileError where the file is missing, too large, not ONNX or truncated; where the graph is empty, cyclic
    or not in topological order; where external data is missing, truncated or lies outside its folder.
    """
    model = _parse(path, _read_bytes(path))
    if not model.HasField("graph"):
        raise ModelFileError(f"{path} is not an ONNX model (it holds no graph): check the file, or export it again")
    if not model.graph.node:
        raise ModelFileError(f"the graph in {path} has no nodes: export the model again")
    check_graph(model, path)
    check_external(model, WeightSources(path.parent, elsewhere or {}), there=weights == "required")
    return model


def check_graph(model: onnx.ModelProto, path: Path) -> None:
    """Raises ModelFileError where a graph is too large to be searched, or damaged: names that are no text, nodes
    without their operands, tensors without their data, no topological order.
    """
    check_size(model, path)
    check_nodes(model, path)
    check_tensors(model, path)
    check_order(model.graph, path)


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
