"""Readable names for the sizes that may change, in place of torch's symbols (s70, s13 + s70)."""

from __future__ import annotations

import re

import onnx_ir as ir

from qbpass.models.export.names import PAST_DIM, QUERY_DIM, TOTAL_DIM


def name_dims(graph: ir.Graph) -> None:
    """Rename the symbols of the inputs' sizes wherever a shape has them; past + query is the total."""
    names = _symbols(graph)
    values = [*graph.inputs, *(output for node in graph for output in node.outputs)]
    for value in values:
        if value.shape is not None and not value.shape.is_static():
            value.shape = ir.Shape([_renamed(dim, names) for dim in value.shape])


def _symbols(graph: ir.Graph) -> dict[str, str]:
    names: dict[str, str] = {}
    for value in graph.inputs:
        if value.shape is None:
            continue
        axis, name = 1, QUERY_DIM
        if (value.name or "").startswith("past_key_values."):
            axis, name = 2, PAST_DIM
        elif value.name == "attention_mask":
            name = TOTAL_DIM
        dim = value.shape[axis]
        if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
            names[str(dim.value)] = name
    return names


def _renamed(dim: int | ir.SymbolicDim, names: dict[str, str]) -> int | str | None:
    if isinstance(dim, int):
        return dim
    if dim.value is None:
        return None
    renamed = re.sub(r"\bs\d+\b", lambda match: names.get(match[0], match[0]), str(dim.value))
    whole = {f"{PAST_DIM} + {QUERY_DIM}", f"{QUERY_DIM} + {PAST_DIM}"}
    return TOTAL_DIM if renamed in whole else renamed
