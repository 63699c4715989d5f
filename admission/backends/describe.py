"""From a graph to what it asks for: one descriptor for each distinct operator, and for each one of every site."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import onnx
from onnx import AttributeProto

from qbpass.admission.backends.descriptor import Descriptor, Operand, Part, Value, type_name
from qbpass.admission.backends.signatures import Formal, formal_at, signature, version_of
from qbpass.admission.backends.tensor_types import TensorTypes, bodies_of

LONGEST_LIST = 16  # of an attribute that a descriptor shows
LONGEST_TEXT = 256

#: What a node is asked as: the site it belongs to (or none) and the part; None leaves the node out.
Place = tuple[str | None, Part]


def describe(
    model: onnx.ModelProto, place: Callable[[onnx.NodeProto], Place | None], queries: int | None = None
) -> tuple[Descriptor, ...]:
    """Every distinct thing the graph and its control-flow bodies ask for, in the order of the graph.

    `Constant` is left out: every runtime here turns it into data when it loads a graph. A call of one of the model's
    own functions is left out too, and the function's nodes are described without types.
    """
    walk = _Walk(model, place, queries)
    walk.graph(model.graph, TensorTypes.of(model))
    for function in model.functions:
        opsets = {_domain(entry.domain): entry.version for entry in function.opset_import}
        walk.nodes(function.node, TensorTypes(opsets))
    return tuple(
        replace(descriptor, nodes=count, example=walk.examples[descriptor]) for descriptor, count in walk.found.items()
    )


def by_output(sites: Mapping[str, str]) -> Callable[[onnx.NodeProto], Place | None]:
    """A `place` for a decoder's own graph: a node belongs to the site that names its first output, else to none."""
    return lambda node: (sites.get(node.output[0]) if node.output else None, "graph")


@dataclass
class _Walk:
    model: onnx.ModelProto
    place: Callable[[onnx.NodeProto], Place | None]
    queries: int | None
    found: Counter[Descriptor] = field(default_factory=Counter)
    examples: dict[Descriptor, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.functions = {(_domain(f.domain), f.name) for f in self.model.functions}

    def graph(self, graph: onnx.GraphProto, types: TensorTypes) -> None:
        self.nodes(graph.node, types)

    def nodes(self, nodes: object, types: TensorTypes) -> None:
        for node in nodes:  # type: ignore[attr-defined]
            inside = {}
            for name, body in bodies_of(node).items():
                inside[name] = types.inside(body)
                self.graph(body, inside[name])
            types.enter(node, inside)
            self._count(node, types)

    def _count(self, node: onnx.NodeProto, types: TensorTypes) -> None:
        domain = _domain(node.domain)
        place = self.place(node)
        if place is None or (node.op_type == "Constant" and domain == "") or (domain, node.op_type) in self.functions:
            return
        descriptor = _descriptor(node, types, *place, self.queries)
        self.found[descriptor] += 1
        self.examples.setdefault(descriptor, node.name or next((name for name in node.output if name), node.op_type))


def _descriptor(
    node: onnx.NodeProto, types: TensorTypes, site: str | None, part: Part, queries: int | None
) -> Descriptor:
    domain = _domain(node.domain)
    opset = types.opsets.get(domain)
    found = signature(node.op_type, domain, opset)
    formals = ((), ()) if found is None else (found.inputs, found.outputs)
    return Descriptor(
        operator=node.op_type,
        domain=domain,
        opset=opset,
        since=version_of(node.op_type, domain, opset),
        inputs=tuple(_operand(name, index, formals[0], types) for index, name in enumerate(node.input)),
        outputs=tuple(_operand(name, index, formals[1], types) for index, name in enumerate(node.output)),
        attributes=tuple(sorted(_attributes(node))),
        bodies=tuple(sorted(bodies_of(node))),
        function_body=found is not None and found.function_body,
        site=site,
        part=part,
        queries=None if site is None else queries,
    )


def _operand(name: str, index: int, formals: tuple[Formal, ...], types: TensorTypes) -> Operand | None:
    if not name:
        return None
    formal = formal_at(formals, index)
    return Operand(
        elem_type=type_name(types.elem_type(name)),
        shape=types.shape(name),
        parameter=None if formal is None else formal.parameter,
        name=None if formal is None else formal.name,
    )


def _attributes(node: onnx.NodeProto) -> Iterator[tuple[str, Value]]:
    """Numbers, strings and short lists of them; tensors and graphs are no part of what distinguishes descriptors."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.INT:
            yield attribute.name, int(attribute.i)
        elif attribute.type == AttributeProto.FLOAT:
            # JSON has no NaN, and a NaN does not equal itself.
            yield attribute.name, float(attribute.f) if math.isfinite(attribute.f) else str(attribute.f)
        elif attribute.type == AttributeProto.STRING:
            yield attribute.name, attribute.s.decode("utf-8", "replace")[:LONGEST_TEXT]
        elif attribute.type == AttributeProto.INTS and len(attribute.ints) <= LONGEST_LIST:
            yield attribute.name, tuple(int(value) for value in attribute.ints)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name
