"""The distinct kinds of computing nodes of a graph, each as a small model.

Nodes that differ in their tensors' names, or in their weights' values, are of one kind. What is left out is named with
the reason.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx
from onnx import TensorProto, helper

from qbpass.admission.probes.case import CASE, Case, Operand, Result, Weight
from qbpass.admission.probes.fills import Fill
from qbpass.admission.probes.kinds import CACHING, EXACT, FLOATS, MOVERS, domain_of, has_bodies, masks_by_place
from qbpass.admission.probes.observe import RunnableGraph, Seen
from qbpass.admission.probes.sizes import Size
from qbpass.admission.probes.weights import MOST_BYTES, read_weight, weight_bytes
from qbpass.models.graph_order import node_reads


@dataclass(frozen=True)
class LeftOut:
    """A kind of node of which nothing is said, and why."""

    operator: str
    domain: str
    reason: str
    count: int = 1


class Unfit(Exception):
    """Nodes that make no case; the text is the reason. Never leaves this module's callers."""


class Collector:
    """Makes cases of nodes of one graph."""

    def __init__(self, graph: RunnableGraph, seen: Mapping[str, Seen]):
        self.graph, self.seen = graph, seen
        self._constants = {tensor.name: tensor for tensor in graph.model.graph.initializer}
        self._opsets = dict(_opsets(graph.model))

    def node_cases(self) -> tuple[list[Case], list[LeftOut]]:
        """A case for each kind of computing node, in the graph's order, and the kinds that are left out."""
        cases: dict[str, Case] = {}
        left: Counter[tuple[str, str, str]] = Counter()
        for node in self.graph.model.graph.node:
            if node.op_type in MOVERS | EXACT and domain_of(node) in ("", "com.microsoft"):
                continue
            try:
                case = self.case([node], node.op_type, domain_of(node))
            except Unfit as reason:
                left[node.op_type, domain_of(node), str(reason)] += 1
                continue
            add_case(cases, case)
        return list(cases.values()), [LeftOut(*entry, count) for entry, count in left.items()]

    def case(self, nodes: Sequence[onnx.NodeProto], operator: str, domain: str) -> Case:
        """The small model of `nodes`, whose last gives the result. Raises Unfit where they make none."""
        if any(has_bodies(node) for node in nodes):
            raise Unfit("holds subgraphs, which are not looked into")
        made = {name for node in nodes for name in node.output if name}
        reads = list(dict.fromkeys(name for node in nodes for name in node_reads(node) if name not in made))
        names = {name: f"t{place}" for place, name in enumerate(reads)}
        operands = tuple(self._operand(name, names[name]) for name in reads if name not in self._constants)
        weights = tuple(
            self._weight(self._constants[name], names[name], place)
            for place, name in enumerate(reads)
            if name in self._constants
        )
        names |= {name: f"r{place}" for place, name in enumerate(n for node in nodes for n in node.output if n)}
        results = tuple(self._result(name, names[name]) for name in nodes[-1].output if name)
        _check_types([*operands, *results], weights)
        carried = _carried(nodes[0], names) if len(nodes) == 1 else {}
        if not carried and any(_is_another_row_alone(node, operands) for node in nodes):
            raise Unfit("is causal or reads the call's own rows as keys, and has no cache: a row alone is another row")
        renamed = tuple(_renamed(node, names) for node in nodes)
        used = {domain_of(node) for node in nodes} | {""}
        return Case(
            operator,
            domain,
            {CASE: renamed},
            operands,
            weights,
            results,
            {name: version for name, version in self._opsets.items() if name in used},
            self.graph.name,
            next(name for name in nodes[-1].output if name),
            carried=carried,
        )

    def _operand(self, name: str, short: str) -> Operand:
        seen = self.seen.get(name)
        if seen is None or seen.dims is None:
            raise Unfit("an operand's length is no sum of rows and keys")
        _check_axes(seen.dims)
        return Operand(short, seen.elem_type, seen.dims, _fill(seen))

    def _weight(self, tensor: TensorProto, short: str, place: int) -> Weight:
        try:
            size = weight_bytes(tensor)
        except (KeyError, TypeError) as error:
            raise Unfit("a constant is of a type that is not drawn") from error
        if size > MOST_BYTES:
            raise Unfit(f"a constant of more than {MOST_BYTES / 2**30:.0f} GiB is not drawn")
        return read_weight(tensor, short, self.graph.weights, seed=place)

    def _result(self, name: str, short: str) -> Result:
        seen = self.seen.get(name)
        if seen is None or seen.dims is None:
            raise Unfit("a result's length is no sum of rows and keys")
        _check_axes(seen.dims)
        return Result(short, seen.elem_type, seen.dims)


def add_case(cases: dict[str, Case], case: Case) -> None:
    """Counts the case with those of its kind; the first of a kind is the one that is kept."""
    kind = _kind(case)
    cases[kind] = replace(cases[kind], count=cases[kind].count + 1) if kind in cases else case


def _kind(case: Case) -> str:
    """What makes two cases one: operators, attributes, types and shapes, and the values of single-element constants."""
    state = hashlib.sha256()
    for node in case.nodes:
        state.update(node.SerializeToString(deterministic=True))
    for operand in case.operands:
        state.update(
            f"{operand.name} {operand.elem_type} {[str(d) for d in operand.dims]} {operand.fill.masks}".encode()
        )
    for weight in case.weights:
        single = weight.value.tobytes() if weight.value is not None and weight.value.size == 1 else b""
        state.update(f"{weight.name} {weight.elem_type} {weight.dims}".encode() + single)
    return state.hexdigest()


def _check_types(tensors: Sequence[Operand | Result], weights: Sequence[Weight]) -> None:
    types = [tensor.elem_type for tensor in tensors]
    if not any(elem in FLOATS for elem in types):
        raise Unfit("computes with whole numbers or truth values alone, which are exact")
    if TensorProto.BFLOAT16 in [*types, *(weight.elem_type for weight in weights)]:
        raise Unfit("numpy has no bfloat16 to feed")
    if any(size == Size() for tensor in tensors for size in tensor.dims):
        raise Unfit("holds nothing in the calls that were seen")
    if all(size.is_fixed for tensor in tensors for size in tensor.dims):
        raise Unfit("is the same in every call: no rows, no keys")


def _check_axes(dims: tuple[Size, ...]) -> None:
    if not all(size.is_fixed or size.is_rows or size.is_keys or size.is_past for size in dims):
        raise Unfit("an axis is neither rows nor keys nor past")
    for role in ("is_rows", "is_keys", "is_past"):
        if sum(getattr(size, role) for size in dims) > 1:
            raise Unfit("two axes of one tensor grow together")


def _fill(seen: Seen) -> Fill:
    """Drawn like the values that the graph's own tensor was seen to hold."""
    fixed_dims = seen.dims is not None and all(size.is_fixed for size in seen.dims)
    if fixed_dims and seen.constant is not None:
        return Fill(kind="stored", table=(tuple(seen.constant.reshape(-1).tolist()),))
    if seen.elem_type == TensorProto.BOOL:
        return Fill(kind="bits")
    if seen.elem_type not in FLOATS:
        if seen.affine is not None:
            return Fill(kind="affine", table=tuple((size.rows, size.keys, size.fixed) for size in seen.affine))
        return Fill(kind="integers", low=seen.low, high=seen.high)
    scale = seen.deviation or 1.0
    if seen.mask_value is not None and any(size.is_keys for size in seen.dims or ()):
        return Fill(kind="scores" if seen.deviation > 0 else "mask", scale=scale, low=seen.mask_value)
    return Fill(kind="positive" if seen.low >= 0 < seen.high else "normal", scale=scale)


def _is_another_row_alone(node: onnx.NodeProto, operands: Sequence[Operand]) -> bool:
    """Of fused attention: whether its keys, or those it lets a row look at, are those of the rows it is called with."""
    if (domain_of(node), node.op_type) not in CACHING:
        return False
    return masks_by_place(node) or all(operand.key_axis is None for operand in operands)


def _carried(node: onnx.NodeProto, names: Mapping[str, str]) -> dict[str, str]:
    places = CACHING.get((domain_of(node), node.op_type), {})
    reads, makes = list(node.input), list(node.output)
    return {
        names[reads[past]]: names[makes[present]]
        for past, present in places.items()
        if past < len(reads) and reads[past] and present < len(makes) and makes[present]
    }


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    short = helper.make_node(
        node.op_type,
        [names.get(name, "") for name in node.input],
        [names.get(name, "") for name in node.output],
        domain=domain_of(node),
    )
    short.attribute.extend(sorted(node.attribute, key=lambda attribute: attribute.name))
    return short


def _opsets(model: onnx.ModelProto) -> list[tuple[str, int]]:
    return [("" if entry.domain == "ai.onnx" else entry.domain, entry.version) for entry in model.opset_import]


def collect(graph: RunnableGraph, seen: Mapping[str, Seen]) -> tuple[list[Case], list[LeftOut]]:
    """The cases of a graph's nodes and the kinds that are left out."""
    return Collector(graph, seen).node_cases()
