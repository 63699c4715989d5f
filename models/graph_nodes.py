"""Is each node one that can be read at all? Searches may then index a node's required operands without asking."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import onnx

from qbpass.models.errors import ModelFileError
from qbpass.models.graph_order import subgraphs


def check_nodes(model: onnx.ModelProto, path: Path) -> None:
    """Raises ModelFileError where a node has a name that is not text, or too few operands or results for its operator.

    Operators without a schema in the onnx package (those of ONNX Runtime) are checked for their names only.
    """
    versions = {_domain(entry.domain): entry.version for entry in model.opset_import}
    _check(model.graph, versions, path)


def _check(graph: onnx.GraphProto, versions: dict[str, int], path: Path) -> None:
    for node in graph.node:
        # protobuf hands out bytes where a string is not UTF-8.
        if not all(isinstance(text, str) for text in (node.op_type, node.domain, node.name, *node.input, *node.output)):
            raise ModelFileError(f"{path} is damaged (a node has a name that is not text): download or export it again")
        operands, results = _least(node.op_type, versions.get(_domain(node.domain), 0), _domain(node.domain))
        if len(node.input) < operands or len(node.output) < results:
            raise ModelFileError(
                f"node {node.name or node.op_type!r} ({node.op_type}) in {path} has {len(node.input)} operands and "
                f"{len(node.output)} results, fewer than its operator needs: export the model again"
            )
        for subgraph in subgraphs(node):
            _check(subgraph, versions, path)


@cache
def _least(op_type: str, version: int, domain: str) -> tuple[int, int]:
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return 0, 1
    return schema.min_input, schema.min_output


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name
