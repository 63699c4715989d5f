"""A graph as it is searched: functions written out, a merged decoder reduced to its branch with a past."""

from __future__ import annotations

from pathlib import Path

import onnx

from qbpass.models.branches import flatten_merged
from qbpass.models.functions import inline_functions
from qbpass.models.graph_io import Weights, read_graph
from qbpass.models.graph_nodes import check_nodes
from qbpass.models.graph_order import check_order


def read_flat_graph(path: Path, weights: Weights = "required") -> onnx.ModelProto:
    """`read_graph`, made flat. Raises ModelFileError as that does, and where functions can't be written out."""
    model = read_graph(path, weights)
    flat = inline_functions(model, path)
    if flat is not model:
        check_nodes(flat, path)  # what was inside functions has not been looked at yet
        check_order(flat.graph, path)
    flatten_merged(flat)
    return flat
