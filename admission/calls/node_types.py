"""The types of one node's outputs in one call: from ONNX's own shape inference, or a contrib operator's rule."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache, lru_cache

import onnx
from onnx import TensorProto, TypeProto, defs, helper, numpy_helper
from onnx.shape_inference import infer_node_outputs

from qbpass.admission.calls.call_inputs import CallShape, TensorInCall
from qbpass.admission.calls.contrib_types import CONTRIB_RULES
from qbpass.admission.calls.memory import Memory
from qbpass.models.graph_order import node_reads, subgraphs

Known = dict[str, TensorInCall]
UNKNOWN = TensorInCall(TensorProto.UNDEFINED, None)


def output_types(
    node: onnx.NodeProto, known: Known, opsets: dict[str, int], memory: Memory | None = None
) -> list[TensorInCall]:
    """One entry for each output; UNKNOWN where neither a schema nor a rule says anything."""
    key = None if memory is None else _key(node, known)
    if memory is not None and key in memory.types:
        return memory.types[key]
    schema = _schema(node.op_type, node.domain, opsets)
    found: list[TensorInCall] = []
    if memory is not None and not memory.inferences.spend(1):
        pass  # no real graph has so many kinds of nodes
    elif schema is not None:
        found = _inferred(node, schema, known, opsets)
    elif node.op_type in CONTRIB_RULES:
        found = CONTRIB_RULES[node.op_type](node, [known.get(name) if name else None for name in node.input])
    found = found[: len(node.output)] + [UNKNOWN] * (len(node.output) - len(found))
    if memory is not None and key is not None and len(memory.types) < _MOST:
        memory.types[key] = found
    return found


def _key(node: onnx.NodeProto, known: Known) -> Hashable:
    """Equal for nodes with the same results; None for one that has bodies, or reads more than a few known values."""
    reads: list[Hashable] = []
    for name in node.input:
        tensor = known.get(name) if name else None
        if tensor is None:
            reads.append(bool(name))
        elif tensor.value is None:
            reads.append((tensor.elem_type, tensor.shape))
        elif tensor.value.size <= _FEW:
            reads.append((tensor.elem_type, tensor.shape, tensor.value.tobytes()))
        else:
            return None
    attributes = tuple([attribute.SerializeToString(deterministic=True) for attribute in node.attribute])
    if attributes and any(subgraphs(node)):
        return None
    return (node.op_type, node.domain, attributes, tuple(reads), tuple(map(bool, node.output)))


_FEW, _MOST = 64, 50_000  # elements of a value that is compared, entries of a memory
_SIZES = 4096  # elements of a value that a shape may be inferred from


@cache
def _schema_of(op_type: str, version: int, domain: str) -> defs.OpSchema | None:
    try:
        return defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        return None


def _schema(op_type: str, domain: str, opsets: dict[str, int]) -> defs.OpSchema | None:
    domain = "" if domain == "ai.onnx" else domain
    version = opsets.get(domain)
    return None if version is None else _schema_of(op_type, version, domain)


def _inferred(node: onnx.NodeProto, schema: defs.OpSchema, known: Known, opsets: dict[str, int]) -> list[TensorInCall]:
    reads = [name for name in dict.fromkeys(node_reads(node)) if name in known]
    types = {name: type_proto(known[name].elem_type, known[name].shape) for name in reads}
    if any(name and name not in types for name in node.input):
        return []
    values = {name: value for name in reads if (value := known[name].value) is not None and value.size <= _SIZES}
    data = {name: numpy_helper.from_array(value) for name, value in values.items()}
    imports = _imports(tuple(opsets.items()))
    try:
        inferred = infer_node_outputs(schema, node, types, data, opset_imports=imports)
    except Exception:  # inference raises its own private types where shapes don't fit; element types are still known
        inferred = _without_shapes(node, schema, known, reads, imports)
    return [_read(inferred.get(name)) for name in node.output]


def _without_shapes(
    node: onnx.NodeProto, schema: defs.OpSchema, known: Known, reads: list[str], imports: list[onnx.OperatorSetIdProto]
) -> dict[str, TypeProto]:
    types = {name: type_proto(known[name].elem_type, None) for name in reads}
    try:
        inferred: dict[str, TypeProto] = infer_node_outputs(schema, node, types, opset_imports=imports)
    except Exception:
        return {}
    return inferred


@lru_cache(maxsize=8)
def _imports(opsets: tuple[tuple[str, int], ...]) -> list[onnx.OperatorSetIdProto]:
    return [helper.make_opsetid(domain, version) for domain, version in opsets]


@lru_cache(maxsize=4096)
def type_proto(elem_type: int, shape: CallShape | None) -> TypeProto:
    """The ONNX type of a tensor in a call."""
    made: TypeProto = helper.make_tensor_type_proto(elem_type, None if shape is None else list(shape))
    return made


def _read(found: TypeProto | None) -> TensorInCall:
    if found is None or not found.HasField("tensor_type"):
        return UNKNOWN
    tensor = found.tensor_type
    if not tensor.HasField("shape"):
        return TensorInCall(tensor.elem_type, None)
    sizes = tuple(int(d.dim_value) if d.HasField("dim_value") else None for d in tensor.shape.dim)
    return TensorInCall(tensor.elem_type, sizes)
