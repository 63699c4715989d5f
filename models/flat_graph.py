"""A graph as it is searched: functions written out, a merged decoder reduced to its branch with a past."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx

from qbpass.models.branches import flatten_merged
from qbpass.models.functions import inline_functions
from qbpass.models.graph_io import Weights, check_graph, read_graph


def read_flat_graph(
    path: Path, weights: Weights = "required", elsewhere: Mapping[str, Path] | None = None
) -> onnx.ModelProto:
    """`read_graph`, made flat. Raises ModelFileError as that does, and where functions can't be written out."""
    model = read_graph(path, weights, elsewhere)
    flat = inline_functions(model, path)
    if flat is not model:
        check_graph(flat, path)  # what was inside functions has not been looked at yet
    flatten_merged(flat)
    _open_negative_dims(flat.graph)
    return flat


def _open_negative_dims(graph: onnx.GraphProto) -> None:
    """A declared dimension below 0 says that it is not known, as it does to ONNX Runtime."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value < 0:
                dim.ClearField("dim_value")
