"""The smallest set of nodes around one node that can be run for some rows of a call and then for others.

A node whose operands and results all hold the call's rows is a unit of its own. One that makes a single number of all
rows (the scale of a per-tensor quantization) is not: whoever reads that number is run with it, until all that leaves
has rows.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import onnx

from qbpass.admission.dataflow import Flow, node_name
from qbpass.admission.probes.kinds import has_bodies
from qbpass.admission.row_units.rows import Unsplittable, row_axis
from qbpass.models.graph_order import node_reads

MOST_NODES = 64  # of a unit; a dynamic quantization with its products has a dozen
WIDEST_SPAN = 512  # nodes between a unit's first and last, in the graph's order
MOST_ROUNDS = 8  # of looking for neighbours and for what lies between; a real unit takes two

Axes = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class RowUnit:
    """nodes: names (first output tensors), in topological order. rows: tensors read from outside, and the axis of each
    that holds the call's rows. shared: what else is read, the same for each row and in each call. results: tensors
    that are read outside, and the axis of their rows. seed: the node that the unit was made around.
    """

    seed: str
    nodes: tuple[str, ...]
    rows: Axes
    shared: tuple[str, ...]
    results: Axes


def row_unit(flow: Flow, seed: onnx.NodeProto, blocked: Container[str] = ()) -> RowUnit:
    """The unit around `seed`. blocked: names of nodes that it may not hold, of an attention or of another unit.

    Raises Unsplittable.
    """
    chosen = {flow.position(node_name(seed))}
    for _ in range(MOST_ROUNDS):
        _add_neighbours(flow, chosen)
        between = _between(flow, chosen)
        if between <= chosen:
            break
        chosen |= between
    else:
        raise Unsplittable("the nodes that would have to be run together have no end")
    nodes = [flow.nodes[position] for position in sorted(chosen)]
    for node in nodes:
        if has_bodies(node):
            raise Unsplittable(f"{node_name(node)!r} holds subgraphs")
        if node_name(node) in blocked:
            raise Unsplittable(f"{node_name(node)!r} is part of an attention or of other nodes that are run together")
    return _unit(flow, node_name(seed), nodes)


def is_shared(flow: Flow, tensor: str) -> bool:
    """Whether a tensor is the same in every call."""
    return tensor not in flow.activations or flow.constant(tensor) is not None


def _add_neighbours(flow: Flow, chosen: set[int]) -> None:
    """Whoever reads, or makes, what holds no rows and is not the same in every call."""
    pending = list(chosen)
    while pending:
        node = flow.nodes[pending.pop()]
        fresh: set[int] = set()
        for tensor in filter(None, node.output):
            readers = flow.consumers(tensor)
            if (readers or tensor in flow.outputs) and row_axis(flow, tensor) is None:
                if tensor in flow.outputs:
                    raise Unsplittable(f"{tensor!r} leaves the graph without rows")
                fresh |= {flow.position(node_name(reader)) for reader in readers}
        for tensor in node_reads(node):
            if not is_shared(flow, tensor) and row_axis(flow, tensor) is None:
                if flow.producer(tensor) is None:
                    raise Unsplittable(f"{tensor!r} belongs to the call as a whole")
                fresh.add(flow.position(tensor))
        fresh -= chosen
        chosen |= fresh
        pending.extend(fresh)
        if len(chosen) > MOST_NODES:
            raise Unsplittable(f"more than {MOST_NODES} nodes would have to be run together")


def _between(flow: Flow, chosen: set[int]) -> set[int]:
    """Positions of the unit's nodes and of those that read the unit and that the unit reads."""
    first, last = min(chosen), max(chosen)
    if last - first > WIDEST_SPAN:
        raise Unsplittable(f"its nodes lie {last - first} nodes apart")
    below: set[str] = set()
    reached = []
    for position in range(first, last + 1):
        node = flow.nodes[position]
        if position in chosen or any(tensor in below for tensor in node_reads(node)):
            below.update(filter(None, node.output))
            reached.append(position)
    wanted: set[str] = set()
    found = set()
    for position in reversed(reached):
        node = flow.nodes[position]
        if position in chosen or any(tensor in wanted for tensor in node.output):
            wanted.update(node_reads(node))
            found.add(position)
    if len(found) > MOST_NODES:
        raise Unsplittable(f"more than {MOST_NODES} nodes would have to be run together")
    return found


def _unit(flow: Flow, seed: str, nodes: list[onnx.NodeProto]) -> RowUnit:
    own = {node_name(node) for node in nodes}
    made = {tensor for node in nodes for tensor in node.output if tensor}
    reads = dict.fromkeys(tensor for node in nodes for tensor in node_reads(node) if tensor not in made)
    rows, shared, results = [], [], []
    for tensor in reads:
        axis = None if is_shared(flow, tensor) else row_axis(flow, tensor)
        if axis is None:  # neighbours without rows are in the unit: this is the same in every call
            shared.append(tensor)
        else:
            rows.append((tensor, axis))
    for tensor in made:
        outside = any(node_name(reader) not in own for reader in flow.consumers(tensor))
        axis = row_axis(flow, tensor) if outside or tensor in flow.outputs else None
        if axis is not None:
            results.append((tensor, axis))
    if not rows or not results:
        raise Unsplittable("it reads or makes no rows")
    return RowUnit(seed, tuple(node_name(node) for node in nodes), tuple(rows), tuple(shared), tuple(sorted(results)))
