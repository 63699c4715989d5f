"""Nodes that work on sizes and small constants alone: what providers of devices leave to the CPU on purpose.

ONNX Runtime gives its CUDA provider every node it has a kernel for, and takes back those that only compute shapes
(onnxruntime/core/framework/fallback_cpu_capability.cc): their inputs and outputs are on the CPU anyway. No value of the
model goes through them, so where they run changes no bit. Any other node on the CPU is one that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx

from qbpass.models.graph_order import node_reads, subgraphs

_SOURCES = frozenset({"Shape", "Size", "Constant"})

#: Elements of a constant that arithmetic on sizes may read: weights and tables are larger.
SMALL = 64


def size_nodes(graph: onnx.GraphProto, outside: Collection[str] = ()) -> frozenset[str]:
    """The names of such nodes, in subgraphs, too. outside: tensors of outer graphs that hold sizes or constants."""
    sizes = {*outside, *(tensor.name for tensor in graph.initializer if _elements(tensor.dims) <= SMALL)}
    found: set[str] = set()
    for node in graph.node:
        inner = [size_nodes(subgraph, sizes) for subgraph in subgraphs(node)]
        found.update(*inner)
        reads = list(node_reads(node))
        whole = all({each.name for each in sub.node} <= part for sub, part in zip(subgraphs(node), inner, strict=True))
        if (node.op_type in _SOURCES and not node.domain) or (reads and whole and sizes.issuperset(reads)):
            found.add(node.name)
            sizes.update(name for name in node.output if name)
    return frozenset(found)


def _elements(dims: Collection[int]) -> int:
    count = 1
    for dim in dims:
        count *= dim
    return count
