"""Is a graph in topological order? Subgraphs count as readers of what they capture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import networkx as nx
import onnx

from qbpass.models.errors import ModelFileError


def check_order(graph: onnx.GraphProto, path: Path) -> None:
    """Raises ModelFileError where a graph or subgraph is cyclic, unsorted, not in SSA form or incomplete."""
    _check(graph, path, set())


def node_reads(node: onnx.NodeProto) -> Iterator[str]:
    """Tensors a node needs from its own graph or an outer one: its inputs and what its subgraphs capture."""
    yield from (name for name in node.input if name)
    for subgraph in subgraphs(node):
        own = {v.name for v in subgraph.input} | {t.name for t in subgraph.initializer}
        for inner in subgraph.node:
            own.update(inner.output)
        reads = {name for inner in subgraph.node for name in node_reads(inner)} | {v.name for v in subgraph.output}
        yield from sorted(reads - own)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Graph attributes of a node: the branches of an If, the body of a Loop or Scan."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _check(graph: onnx.GraphProto, path: Path, known: set[str]) -> None:
    """`known` holds what an outer graph has made so far, and holds it again afterwards."""
    own = _given(graph, path) - known
    known |= own
    made = {name: node for node in graph.node for name in node.output if name}
    for node in graph.node:
        for name in node_reads(node):
            if name not in known:
                raise ModelFileError(_why(graph, node, name, made, path))
        for subgraph in subgraphs(node):
            _check(subgraph, path, known)
        for name in node.output:
            if name and name in known:
                raise _twice(name, path)
            if name:
                known.add(name)
                own.add(name)
    for name in _each_once((value.name for value in graph.output), path):
        if name not in known:
            raise ModelFileError(f"output {name!r} is made by no node in {path}: export the model again")
    known -= own


def _given(graph: onnx.GraphProto, path: Path) -> set[str]:
    """What is there before the first node runs."""
    inputs = _each_once((value.name for value in graph.input), path)
    sparse = (tensor.values.name for tensor in graph.sparse_initializer)
    return inputs | _each_once((*(tensor.name for tensor in graph.initializer), *sparse), path)


def _each_once(names: Iterable[str], path: Path) -> set[str]:
    found: set[str] = set()
    for name in names:
        if name in found:
            raise _twice(name, path)
        found.add(name)
    return found


def _twice(name: str, path: Path) -> ModelFileError:
    return ModelFileError(f"tensor {name!r} is made twice in {path}: the graph is damaged, export it again")


def _why(graph: onnx.GraphProto, node: onnx.NodeProto, name: str, made: dict[str, onnx.NodeProto], path: Path) -> str:
    reader = f"node {node.name or next(iter(node.output), '')!r} ({node.op_type})"
    if name not in made:
        return f"{reader} in {path} reads tensor {name!r}, which nothing makes: the graph is damaged, export it again"
    edges: nx.DiGraph = nx.DiGraph()
    for reader_node in graph.node:
        edges.add_edges_from((read, out) for read in node_reads(reader_node) for out in reader_node.output if out)
    if not nx.is_directed_acyclic_graph(edges):
        cycle = [edge[0] for edge in nx.find_cycle(edges)]
        return (
            f"the graph in {path} is cyclic (through {', '.join(map(repr, cycle[:4]))}): it is damaged, export it again"
        )
    return (
        f"{reader} in {path} reads tensor {name!r} before it is made: sort the graph topologically, or export it again"
    )
