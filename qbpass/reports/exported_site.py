"""The picture of an attention as the graph has it, admitted or refused, with the node that decided marked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import networkx as nx

from qbpass.models.dataflow import SHAPE_OPS
from qbpass.reports.node_index import NodeIndex, data_operands
from qbpass.reports.picture import Box, Line, Picture
from qbpass.reports.plain import tail, visible
from qbpass.reports.site_picture import Subject, Tensors, node_hint, node_key, paint, role_of

if TYPE_CHECKING:
    import onnx

    from qbpass.admission.facts import AttentionFacts
    from qbpass.admission.report import Diagnostic, SiteReport

_CALLED = {
    "q": "queries",
    "k": "keys",
    "v": "values",
    "past_key": "past keys",
    "past_value": "past values",
    "present_key": "present keys",
    "present_value": "present values",
}
_NEW = {"past_key": "new keys", "past_value": "new values"}
_OPERANDS = ("q", "k", "v", "past_key", "past_value")
_RESULTS = ("output", "present_key", "present_value")
#: Evidence that lists what a node reads, as against what is wrong.
_LISTINGS = frozenset({"inputs", "qk_operands", "av_operands", "operator"})
_OUTSIDE_SHOWN, _UPSTREAM_LIMIT = 2, 2000


def exported_picture(report: SiteReport, index: NodeIndex, tensors: Tensors) -> Picture | None:
    """None where neither the report's facts nor its evidence name a node of the graph."""
    named = list(_named(report.diagnostics[0])) if report.diagnostics else []
    subject = _subject(report, index, named)
    if subject is None:
        return None
    picture = paint(index, tensors, subject)
    return _marked(picture, index, named)


def _subject(report: SiteReport, index: NodeIndex, named: list[str]) -> Subject | None:
    facts = report.facts
    output = facts.tensors.get("output") if facts is not None else None
    if facts is not None and output is not None and index.node(output) is not None:
        return _whole(facts, output, index)
    node = next((node for name in named if (node := index.node(name)) is not None), None)
    if node is None:
        return None
    # Of a node alone: what it reads and what it gives.
    ends = {name: _part(facts, name) or "input" for name in node.input if name and not index.is_constant(name)}
    outputs = {name: _part(facts, name) or "output" for name in node.output if name}
    return Subject(outputs, ends)


def _whole(facts: AttentionFacts, output: str, index: NodeIndex) -> Subject:
    ends = {name: _called(part) for part, name in facts.tensors.items() if part not in _RESULTS}
    cache = []
    for part, past in (("k", "past_key"), ("v", "past_value")):
        tensor, before = facts.tensors.get(part), facts.tensors.get(past)
        join = index.node(tensor) if tensor is not None else None
        if join is None or before is None or before not in join.input:
            continue
        cache.append(node_key(join))
        ends.pop(str(tensor), None)
        others = [name for name in data_operands(join) if name != before and not index.is_constant(name)]
        ends.update((name, _NEW[past]) for name in others if name not in ends)
    made = {name for name in facts.tensors.values() if name in index.makers}
    leaving = {
        name: _called(part)
        for part, name in facts.tensors.items()
        if part in ("present_key", "present_value") and name in made
    }
    ends.pop(output, None)
    own = {facts.tensors[part] for part in _OPERANDS if part in facts.tensors} | {name for name in ends if name in made}
    return Subject({output: "output"}, ends, leaving, _between(own, output, index), cache)


def _between(own: Collection[str], output: str, index: NodeIndex) -> Collection[str] | None:
    """Tensors on the way from the attention's own to its output. What is added to the scores comes from elsewhere."""
    graph: nx.DiGraph = nx.DiGraph()
    pending, seen = [output], {output}
    while pending and len(seen) < _UPSTREAM_LIMIT:
        tensor = pending.pop()
        maker = index.node(tensor)
        for read in data_operands(maker) if maker is not None and maker.op_type not in SHAPE_OPS else ():
            graph.add_edge(read, tensor)
            if read not in seen and read not in own:
                seen.add(read)
                pending.append(read)
    found = [tensor for tensor in own if tensor in graph]
    return set().union(*(nx.descendants(graph, tensor) | {tensor} for tensor in found)) if found else None


def _called(part: str) -> str:
    return _CALLED.get(part, visible(part.replace("_", " "), 18))


def _part(facts: AttentionFacts | None, tensor: str) -> str | None:
    found = next((part for part, name in facts.tensors.items() if name == tensor), None) if facts is not None else None
    return None if found is None else _called(found)


def _named(diagnostic: Diagnostic) -> Iterator[str]:
    """Every name in the evidence, in its own order; what a node reads comes last."""
    evidence = diagnostic.evidence
    for key in sorted(evidence, key=lambda key: key in _LISTINGS):
        yield from _texts(evidence[key])


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (str(key) for key in value)
    elif isinstance(value, (list, tuple)):
        yield from (entry for entry in value if isinstance(entry, str))


def _marked(picture: Picture, index: NodeIndex, named: list[str]) -> Picture:
    """The first box that the evidence names is marked; named nodes outside are drawn beside it, at most two."""
    drawn = {box.key for box in picture.boxes}
    pills = {box.key.partition(" ")[2]: box.key for box in picture.boxes if box.role == "tensor"}
    inside = next((name if name in drawn else pills[name] for name in named if name in drawn or name in pills), None)
    boxes = [replace(box, marked=box.key == inside) for box in picture.boxes]
    lines = list(picture.lines)
    beside = [name for name in dict.fromkeys(named) if name not in drawn and name not in pills]
    outside = [node for name in beside if (node := index.node(name)) is not None]
    for node in outside[:_OUTSIDE_SHOWN]:
        tied = _reading(node, drawn, index) or _feeding(node, pills, index)
        if tied is not None and node_key(node) not in {box.key for box in boxes}:
            boxes.append(_outside(node))
            lines.append(tied)
    return Picture(tuple(boxes), tuple(lines), picture.sink)


def _outside(node: onnx.NodeProto) -> Box:
    key = node_key(node)
    return Box(key, visible(node.op_type, 30), tail(key, 21), role_of(node), node_hint(node), marked=True)


def _reading(node: onnx.NodeProto, drawn: set[str], index: NodeIndex) -> Line | None:
    """The line from a drawn node to this one, which reads its result."""
    for tensor in node.input:
        maker = index.node(tensor)
        if maker is not None and node_key(maker) in drawn:
            return Line(node_key(maker), node_key(node), tensor)
    return None


def _feeding(node: onnx.NodeProto, pills: Mapping[str, str], index: NodeIndex) -> Line | None:
    """The line from this node to the operand that is computed from it, with what lies between left out."""
    graph: nx.DiGraph = nx.DiGraph()
    pending = [name for name, key in pills.items() if key.startswith("in ")]
    seen = set(pending)
    start = node_key(node)
    while pending and len(seen) < _UPSTREAM_LIMIT:
        tensor = pending.pop(0)
        maker = index.node(tensor)
        if maker is None:
            continue
        for read in maker.input:
            graph.add_edge(read, tensor)
            if read and read not in seen:
                seen.add(read)
                pending.append(read)
    for tensor, key in pills.items():
        if key.startswith("in ") and start in graph and tensor in graph and nx.has_path(graph, start, tensor):
            return Line(start, key, start, indirect=start != tensor)
    return None
