"""Is each node one that can be read at all? Searches may then index a node's required operands without asking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import onnx

from qbpass.models.errors import ModelFileError
from qbpass.models.graph_order import subgraphs


def check_nodes(model: onnx.ModelProto, path: Path) -> None:
    """Raises ModelFileError where no version of ONNX's operators is stated, a name is not text, an attribute has no
    type or no value of its own, or a node lacks what its operator needs: operands, results, attributes of a type.
    """
    notes = (text for note in model.metadata_props for text in (note.key, note.value))
    _check_text((*(entry.domain for entry in model.opset_import), *notes), "an operator set or a note", path)
    versions = {_domain(entry.domain): entry.version for entry in model.opset_import}
    if versions.get("", 0) < 1:
        raise ModelFileError(f"{path} states no version of ONNX's operators: it is damaged, export it again")
    _check(model.graph, versions, path)


def _check(graph: onnx.GraphProto, versions: dict[str, int], path: Path) -> None:
    _check_text(_declared_names(graph), "an input, output or weight", path)
    _check_types(graph, path)
    for node in graph.node:
        _check_text((node.op_type, node.domain, node.name, *node.input, *node.output), "a node", path)
        _check_text((attribute.name for attribute in node.attribute), "an attribute", path)
        if any(a.type == onnx.AttributeProto.UNDEFINED or a.ref_attr_name for a in node.attribute):
            raise ModelFileError(
                f"{path} is damaged (node {node.name or node.op_type!r} has an attribute without a type or a value): "
                "download or export it again"
            )
        problem = _problem(node, _needs(node.op_type, versions.get(_domain(node.domain), 0), _domain(node.domain)))
        if problem is not None:
            raise ModelFileError(
                f"node {node.name or node.op_type!r} ({node.op_type}) in {path} has {problem}: export the model again"
            )
        for subgraph in subgraphs(node):
            _check(subgraph, versions, path)


def _declared_names(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (tensor.name for tensor in graph.initializer)
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)


def _check_types(graph: onnx.GraphProto, path: Path) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type not in _TYPES:
            raise ModelFileError(
                f"tensor {value.name!r} in {path} has the unknown data type {value.type.tensor_type.elem_type}: export "
                "the model again"
            )


_TYPES = frozenset(onnx.TensorProto.DataType.values())


def _check_text(names: Iterable[str], whose: str, path: Path) -> None:
    # protobuf hands out bytes where a string is not UTF-8.
    if not all(isinstance(name, str) for name in names):
        raise ModelFileError(f"{path} is damaged ({whose} has a name that is not text): download or export it again")


@dataclass(frozen=True)
class _Needs:
    """The least numbers of operands and results, and types of attributes (onnx.AttributeProto.AttributeType)."""

    operands: int
    results: int
    types: Mapping[str, int]
    required: tuple[str, ...] = ()
    most_operands: int = 2**31


def _problem(node: onnx.NodeProto, needs: _Needs) -> str | None:
    if len(node.input) < needs.operands or len(node.output) < needs.results:
        return f"{len(node.input)} operands and {len(node.output)} results, fewer than its operator needs"
    if len(node.input) > needs.most_operands:
        return f"{len(node.input)} operands, more than its operator takes"
    given = {attribute.name: attribute.type for attribute in node.attribute}
    strange = next((name for name, kind in given.items() if needs.types.get(name, kind) != kind), None)
    if strange is not None:
        return f"an attribute {strange!r} of another type than its operator's"
    missing = next((name for name in needs.required if name not in given), None)
    return None if missing is None else f"no attribute {missing!r}, which its operator needs"


# Operators of ONNX Runtime that searches know by name -> their required operands; all have a result.
# Source: onnxruntime/core/graph/contrib_ops (schemas of ONNX Runtime 1.32).
_CONTRIB = {
    **dict.fromkeys(("FastGelu", "QuickGelu"), 1),
    **dict.fromkeys(("Attention", "BiasDropout", "BiasGelu", "BiasSoftmax", "BiasSplitGelu", "FusedGemm"), 2),
    **dict.fromkeys(("FusedMatMul", "FusedMatMulActivation", "GemmFloat8", "Range", "SimplifiedLayerNormalization"), 2),
    **dict.fromkeys(("DynamicQuantizeMatMul", "GatherBlockQuantized", "GroupNorm", "MatMulBnb4", "MatMulFpQ4"), 3),
    **dict.fromkeys(("MatMulNBits", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), 3),
    **{"MatMulIntegerToFloat": 4, "QLinearSoftmax": 5, "QGemm": 6, "EmbedLayerNormalization": 7},
}
_CONTRIB_TYPES: dict[str, int] = {
    "alpha": onnx.AttributeProto.FLOAT,
    **dict.fromkeys(("transA", "transB", "transBatchA", "transBatchB", "N", "K", "bits"), onnx.AttributeProto.INT),
    **dict.fromkeys(("axis", "gather_axis", "quantize_axis"), onnx.AttributeProto.INT),
}


@cache
def _needs(op_type: str, version: int, domain: str) -> _Needs:
    """An operator of a strange domain needs what the one whose name it has needs: searches go by the name."""
    try:
        return _of_schema(onnx.defs.get_schema(op_type, version, domain))
    except onnx.defs.SchemaError:
        if op_type in _CONTRIB:
            return _Needs(_CONTRIB[op_type], 1, _CONTRIB_TYPES)
        if not onnx.defs.has(op_type):
            return _Needs(0, 1, {})
        return replace(_of_schema(onnx.defs.get_schema(op_type)), required=(), most_operands=2**31)


def _of_schema(schema: onnx.defs.OpSchema) -> _Needs:
    types = {name: int(cast(Any, attribute.type).value) for name, attribute in schema.attributes.items()}
    required = tuple(name for name, attribute in schema.attributes.items() if attribute.required)
    return _Needs(schema.min_input, schema.min_output, types, required, schema.max_input)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name
