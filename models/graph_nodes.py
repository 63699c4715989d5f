"""Is each node one that can be read at all? Searches may then index a node's required operands without asking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import onnx

from qbpass.models.errors import ModelFileError
from qbpass.models.graph_order import subgraphs


def check_nodes(model: onnx.ModelProto, path: Path) -> None:
    """Raises ModelFileError where a name is not text, an attribute has no type, or a node has too few operands or
    results for its operator.

    Operators without a schema in the onnx package (those of ONNX Runtime) are checked for their names only.
    """
    versions = {_domain(entry.domain): entry.version for entry in model.opset_import}
    _check(model.graph, versions, path)


def _check(graph: onnx.GraphProto, versions: dict[str, int], path: Path) -> None:
    _check_text(_declared_names(graph), "an input, output or weight", path)
    for node in graph.node:
        _check_text((node.op_type, node.domain, node.name, *node.input, *node.output), "a node", path)
        if any(attribute.type == onnx.AttributeProto.UNDEFINED for attribute in node.attribute):
            raise ModelFileError(
                f"{path} is damaged (node {node.name or node.op_type!r} has an attribute without a type): download or "
                "export it again"
            )
        operands, results = _least(node.op_type, versions.get(_domain(node.domain), 0), _domain(node.domain))
        if len(node.input) < operands or len(node.output) < results:
            raise ModelFileError(
                f"node {node.name or node.op_type!r} ({node.op_type}) in {path} has {len(node.input)} operands and "
                f"{len(node.output)} results, fewer than its operator needs: export the model again"
            )
        for subgraph in subgraphs(node):
            _check(subgraph, versions, path)


def _declared_names(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (tensor.name for tensor in graph.initializer)
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)


def _check_text(names: Iterable[str], whose: str, path: Path) -> None:
    # protobuf hands out bytes where a string is not UTF-8.
    if not all(isinstance(name, str) for name in names):
        raise ModelFileError(f"{path} is damaged ({whose} has a name that is not text): download or export it again")


@cache
def _least(op_type: str, version: int, domain: str) -> tuple[int, int]:
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return 0, 1
    return schema.min_input, schema.min_output


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name
