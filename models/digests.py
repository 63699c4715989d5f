"""SHA-256 digests: of files, of a graph."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx

from qbpass.models.errors import ModelFileError
from qbpass.models.graph_order import subgraphs


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file, read as a stream. Raises ModelFileError where it can't be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ModelFileError(f"{path} can't be read ({error.strerror or error}): check that it is there") from error


def graph_digest(model: onnx.ModelProto) -> str:
    """SHA-256 (hex) of what a graph computes, external weights by reference only.

    Documentation, metadata and the producer's name are left out; node and tensor names are not.
    """
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for field in ("doc_string", "metadata_props", "producer_name", "producer_version", "model_version", "domain"):
        bare.ClearField(field)
    _strip_notes(bare.graph)
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).hexdigest()


def _strip_notes(graph: onnx.GraphProto) -> None:
    for item in (graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
        item.ClearField("doc_string")
        if "metadata_props" in item.DESCRIPTOR.fields_by_name:
            item.ClearField("metadata_props")
    for node in graph.node:
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
        for subgraph in subgraphs(node):
            _strip_notes(subgraph)
