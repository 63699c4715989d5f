"""One stream: the batch that a graph leaves open is declared to be 1, for qbpass drives one stream."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from qbpass.models.graph_order import subgraphs
from qbpass.models.interface import Interface


def pin_batch(model: onnx.ModelProto, interface: Interface) -> None:
    """Declares the open batch axis of the interface's inputs as 1, in place. Nodes are never changed.

    1. The batch axis is axis 0 of token ids, mask and positions of rank 2, and of caches of rank 4.
    2. An axis that has a symbol is pinned with every other occurrence of that symbol, in inputs, outputs and inner
       declarations; one without a symbol is pinned alone.
    3. A symbol that is also on another axis of one of these inputs is no batch, and is left open.
    4. A fixed size stays what it is.
    """
    declared = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    batched = [declared[name] for name, rank in _batched(interface) if len(declared.get(name, ())) == rank]
    elsewhere = {dim.dim_param for dims in batched for dim in dims[1:]}
    symbols = {dims[0].dim_param for dims in batched} - elsewhere - {""}
    for dims in batched:
        if not dims[0].HasField("dim_value") and not dims[0].dim_param:
            dims[0].dim_value = 1
    for dim in _declared_dims(model.graph):
        if dim.dim_param in symbols:
            dim.dim_value = 1  # takes the symbol's place


def _batched(interface: Interface) -> Iterator[tuple[str, int]]:
    """(input, rank it has where axis 0 is its batch)."""
    for name in (interface.input_ids, interface.attention_mask, interface.position_ids):
        if name is not None:
            yield name, 2
    for pair in interface.kv:
        yield from ((name, 4) for name in (pair.past_key, pair.past_value) if name is not None)
    for cross in interface.cross_kv:
        yield from ((name, 4) for name in (cross.key, cross.value) if name is not None)


def _declared_dims(graph: onnx.GraphProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield from value.type.tensor_type.shape.dim
    for node in graph.node:
        for body in subgraphs(node):
            yield from _declared_dims(body)
