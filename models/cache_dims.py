"""Heads, head dimension and growing axis of a cache: as declared, or as its attention says them."""

from __future__ import annotations

import onnx

from qbpass.models.attention_reads import STOPS
from qbpass.models.caches import Cache
from qbpass.models.dataflow import CONTRACTIONS, FUSED_ATTENTION, Dataflow, Dim, int_attribute


def kv_heads(flow: Dataflow, cache: Cache) -> int | None:
    """The number of KV heads; None where the graph does not say it."""
    dim = _dim(flow, cache, 1 if growth_axis(flow, cache) in (None, 2, 3) else 2)
    if isinstance(dim, int):
        return dim
    node = flow.graph.node[cache.at]
    return int_attribute(node, "kv_num_heads") or int_attribute(node, "num_heads") or None


def head_dim(flow: Dataflow, cache: Cache) -> int | None:
    """From the cache's own shape; a fused attention without one says it by the width its output projection takes."""
    dim = _dim(flow, cache, 2 if growth_axis(flow, cache) == 3 else 3)
    if isinstance(dim, int):
        return dim
    node = flow.graph.node[cache.at]
    heads = int_attribute(node, "num_heads") or int_attribute(node, "q_num_heads")
    if node.op_type not in FUSED_ATTENTION or not heads:
        return None
    for reader, operand in flow.forward(node.output[0], lambda n, _: n.op_type not in STOPS):
        width = _contracted_width(flow, reader) if operand == 0 and reader.op_type in CONTRACTIONS else None
        if width and width % heads == 0:
            return width // heads
    return None


def growth_axis(flow: Dataflow, cache: Cache) -> int | None:
    """The cache's axis of positions: its Concat's, else the one in which past and present are declared to differ.

    None where neither says it.
    """
    shape = flow.shape(cache.name)
    if cache.axis is not None:
        return cache.axis + (len(shape) if shape is not None else 4) if cache.axis < 0 else cache.axis
    before, after = (flow.shape(name) if name else None for name in (cache.past, cache.present))
    if before is None or after is None or len(before) != len(after):
        return None
    differing = [axis for axis, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    return differing[0] if len(differing) == 1 else None


def _dim(flow: Dataflow, cache: Cache, axis: int) -> Dim:
    """One dimension of a rank-4 cache, from its input or its output."""
    for name in (cache.past, cache.present):
        shape = flow.shape(name) if name else None
        if shape is not None and len(shape) == 4 and isinstance(shape[axis], int):
            return shape[axis]
    return None


def _contracted_width(flow: Dataflow, node: onnx.NodeProto) -> int | None:
    if int_attribute(node, "K"):  # MatMulNBits, MatMulBnb4
        return int_attribute(node, "K")
    at = 3 if node.op_type in ("QLinearMatMul", "QGemm") else 1  # behind the input, its scale and its zero point
    dims = flow.weight_dims(node.input[at]) if len(node.input) > at else None
    if dims is None or len(dims) != 2:
        return None
    return dims[1] if int_attribute(node, "transB") else dims[0]
