"""Where the boxes of a picture go: rows by distance from the sink, fewest crossings in a row, straight lines.

The steps are those of Sugiyama, Tagawa and Toda (1981): layers, dummies on lines that pass a row, orders by
barycenters, then positions. Sizes are in CSS pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx

from qbpass.reports.picture import Picture

SWEEPS, SWAPS = 24, 3
FULL_ROW = 6
DUMMY_WIDTH = 14.0
DUMMY_PULL = 8.0  # of a dummy on another: long lines stay straight

Node = str | tuple[int, int]  # a box's key, or (line, row) for a dummy on that line


@dataclass(frozen=True)
class Layout:
    """Centres of boxes; for each line the x at every row it passes, its ends included. Rows count from the top."""

    x: Mapping[str, float]
    row: Mapping[str, int]
    passes: Sequence[Sequence[tuple[float, int]]]
    width: float
    rows: int


def lay_out(picture: Picture, widths: Mapping[str, float], gap: float) -> Layout:
    """Positions for every box. gap: between neighbours in a row."""
    rows = _rows(picture)
    chains = [_chain(index, line.source, line.target, rows) for index, line in enumerate(picture.lines)]
    graph: nx.Graph = nx.Graph()
    for chain in chains:  # lines first: rows begin in the order of operands
        graph.add_edges_from(pairwise(chain))
    graph.add_nodes_from(box.key for box in picture.boxes)
    row_of = {node: rows[node] if isinstance(node, str) else node[1] for node in graph}
    order = _order(graph, row_of)
    wide = {node: widths[node] if isinstance(node, str) else DUMMY_WIDTH for node in graph}
    x = _positions(graph, order, wide, gap)
    left = min(x[node] - wide[node] / 2 for node in graph)
    right = max(x[node] + wide[node] / 2 for node in graph)
    return Layout(
        x={box.key: x[box.key] - left for box in picture.boxes},
        row=rows,
        passes=[[(x[node] - left, row_of[node]) for node in chain] for chain in chains],
        width=right - left,
        rows=1 + max(rows.values()),
    )


def _rows(picture: Picture) -> dict[str, int]:
    """A box lies just above the nearest that reads it. What does not flow to the sink lies just below its maker."""
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from(box.key for box in picture.boxes)
    graph.add_edges_from((line.source, line.target) for line in picture.lines)
    before_sink = nx.ancestors(graph, picture.sink) | {picture.sink}
    height: dict[str, int] = {}
    for key in reversed(list(nx.topological_sort(graph.subgraph(before_sink)))):
        height[key] = 1 + max((height[reader] for reader in graph.successors(key) if reader in height), default=-1)
    for key in nx.topological_sort(graph):
        if key not in height:
            height[key] = min((height[maker] for maker in graph.predecessors(key) if maker in height), default=1) - 1
    _raise_sources(height, graph)
    top = max(height.values())
    return {key: top - value for key, value in height.items()}


def _raise_sources(height: dict[str, int], graph: nx.DiGraph) -> None:
    """Where a row is too full, every other box that nothing flows to goes up: fused operators have many operands."""
    for level in sorted(set(height.values())):
        row = [key for key, value in height.items() if value == level]
        sources = [key for key in row if graph.in_degree(key) == 0]
        if len(row) > FULL_ROW:
            height.update((key, level + 1) for key in sources[1::2])


def _chain(index: int, source: str, target: str, rows: Mapping[str, int]) -> list[Node]:
    return [source, *((index, row) for row in range(rows[source] + 1, rows[target])), target]


def _order(graph: nx.Graph, row_of: Mapping[Node, int]) -> list[list[Node]]:
    """Each row's nodes from left to right: sorted by the mean place of their neighbours, downwards and upwards."""
    order: list[list[Node]] = [[] for _ in range(1 + max(row_of.values()))]
    for node in graph:
        order[row_of[node]].append(node)
    best, fewest = [list(row) for row in order], _crossings(order, graph)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for index in range(len(order)) if down else reversed(range(len(order))):
            beside = index - 1 if down else index + 1
            if 0 <= beside < len(order):
                place = {node: float(at) for at, node in enumerate(order[beside])}
                order[index] = _sorted_by(order[index], place, graph)
        crossings = _crossings(order, graph)
        if crossings < fewest:
            best, fewest = [list(row) for row in order], crossings
    return _swapped(best, graph, fewest)


def _swapped(order: list[list[Node]], graph: nx.Graph, fewest: int) -> list[list[Node]]:
    """Neighbours in a row change places where that takes away a crossing: barycenters that are equal say nothing."""
    for _ in range(SWAPS if fewest else 0):
        for row in order:
            for at in range(len(row) - 1):
                row[at], row[at + 1] = row[at + 1], row[at]
                crossings = _crossings(order, graph)
                if crossings < fewest:
                    fewest = crossings
                else:
                    row[at], row[at + 1] = row[at + 1], row[at]
    return order


def _sorted_by(row: Sequence[Node], place: Mapping[Node, float], graph: nx.Graph) -> list[Node]:
    """A node without neighbours there keeps its place."""
    wanted = {}
    for at, node in enumerate(row):
        places = [place[other] for other in graph[node] if other in place]
        wanted[node] = sum(places) / len(places) if places else float(at)
    return sorted(row, key=lambda node: wanted[node])


def _crossings(order: Sequence[Sequence[Node]], graph: nx.Graph) -> int:
    count = 0
    for upper, lower in pairwise(order):
        place = {node: at for at, node in enumerate(lower)}
        ends = [sorted(place[other] for other in graph[node] if other in place) for node in upper]
        flat = [end for node_ends in ends for end in node_ends]
        owner = [at for at, node_ends in enumerate(ends) for _ in node_ends]
        count += sum(
            owner[i] < owner[j] and flat[i] > flat[j] for i in range(len(flat)) for j in range(i + 1, len(flat))
        )
    return count


def _positions(
    graph: nx.Graph, order: Sequence[Sequence[Node]], wide: Mapping[Node, float], gap: float
) -> dict[Node, float]:
    """x of every node: as near to its neighbours' mean as the row's order and the widths let it be."""
    x: dict[Node, float] = {}
    for row in order:
        x.update(_spread(row, [0.0] * len(row), [1.0] * len(row), wide, gap))
    for sweep in range(SWEEPS):
        for row in order if sweep % 2 == 0 else reversed(order):
            wanted, weights = [], []
            for node in row:
                pulls = [(x[other], _pull(node, other)) for other in graph[node]]
                total = sum(pull for _, pull in pulls)
                wanted.append(sum(at * pull for at, pull in pulls) / total if total else x[node])
                weights.append(max(total, 0.1))
            x.update(_spread(row, wanted, weights, wide, gap))
    return x


def _pull(node: Node, other: Node) -> float:
    return DUMMY_PULL if isinstance(node, tuple) and isinstance(other, tuple) else 1.0


def _spread(
    row: Sequence[Node], wanted: Sequence[float], weights: Sequence[float], wide: Mapping[Node, float], gap: float
) -> dict[Node, float]:
    """The places nearest to `wanted` (weighted squares) that keep the row's order and its gaps: isotonic regression."""
    offsets = [0.0]
    for left, right in pairwise(row):
        offsets.append(offsets[-1] + (wide[left] + wide[right]) / 2 + gap)
    blocks: list[list[float]] = []  # [mean, weight, members]
    for target, weight, offset in zip(wanted, weights, offsets, strict=True):
        blocks.append([target - offset, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, total, members = blocks.pop()
            before = blocks[-1]
            before[0] = (before[0] * before[1] + mean * total) / (before[1] + total)
            before[1] += total
            before[2] += members
    places = [mean for mean, _, members in blocks for _ in range(int(members))]
    return {node: place + offset for node, place, offset in zip(row, places, offsets, strict=True)}
