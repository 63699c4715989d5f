"""Is a graph small enough to be searched? A file of a few megabytes can describe one that takes hours."""

from __future__ import annotations

from pathlib import Path

import onnx

from qbpass.models.errors import ModelFileError
from qbpass.models.graph_order import subgraphs

#: Tensors that the nodes of a graph and of its bodies make. A decoder of 100 layers makes some 10,000 (TorchScript's).
MAX_TENSORS = 30_000
MAX_OPERANDS = 1_000_000
MAX_BODIES = 5_000  # branches of an If, bodies of a Loop; TorchScript writes an If where it does not know a rank
MAX_INTERFACE = 10_000  # inputs that are no initializers, and outputs; two a layer, and a few


def check_size(model: onnx.ModelProto, path: Path) -> None:
    """Raises ModelFileError where a graph has more nodes, operands, bodies, inputs or outputs than qbpass reads."""
    tensors, operands, bodies = _size(model.graph)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = sum(value.name not in weights for value in model.graph.input)
    for what, count, most in (
        ("tensors that nodes make", tensors, MAX_TENSORS),
        ("operands of nodes", operands, MAX_OPERANDS),
        ("bodies of nodes", bodies, MAX_BODIES),
        ("inputs", inputs, MAX_INTERFACE),
        ("outputs", len(model.graph.output), MAX_INTERFACE),
    ):
        if count > most:
            raise ModelFileError(
                f"the graph in {path} has {count:,} {what}, more than the {most:,} that qbpass reads: export a smaller "
                "graph"
            )


def _size(graph: onnx.GraphProto) -> tuple[int, int, int]:
    """(tensors that nodes make, operands of nodes, bodies); a node counts though it makes none."""
    tensors = operands = bodies = 0
    for node in graph.node:
        tensors += len(node.output) or 1
        operands += len(node.input)
        for body in subgraphs(node):
            inner = _size(body)
            tensors, operands, bodies = tensors + inner[0], operands + inner[1], bodies + inner[2] + 1
    return tensors, operands, bodies
