"""A decoder reduced to one fused operator: what a falsifier runs, and what an audit looks at."""

from __future__ import annotations

from dataclasses import replace

import onnx
from onnx import TensorProto, helper

from qbpass.admission.fused_site import FusedSite
from qbpass.models.decoder import Decoder
from qbpass.models.interface import Interface


def fused_node(model: onnx.ModelProto, site: FusedSite) -> onnx.NodeProto:
    """The site's operator. Raises KeyError where the graph has none of that name."""
    for node in model.graph.node:
        if node.output and node.output[0] == site.node:
            found: onnx.NodeProto = node
            return found
    raise KeyError(site.node)


def fused_alone(frozen: Decoder, site: FusedSite) -> Decoder:
    """The same decoder with the operator alone: the call's rows, the cache and the lengths are graph inputs.

    What the operator reads besides (rotary tables, norms, sinks) are the frozen graph's own initializers.
    """
    graph, node = frozen.model.graph, fused_node(frozen.model, site)
    weights = {tensor.name: tensor for tensor in graph.initializer}
    declared = {value.name: value for value in (*graph.input, *graph.output, *graph.value_info)}
    stored = [weights[name] for name in node.input if name in weights]
    ids = frozen.contract.input_ids
    lengths = {site.seqlens_k: TensorProto.INT32, site.total: TensorProto.INT32}
    given = [name for name in dict.fromkeys(node.input) if name and name not in weights]

    def value(name: str) -> onnx.ValueInfoProto:
        positions = site.positions_at in site.row_axes and node.input[site.positions_at] == name
        kind = lengths.get(name, TensorProto.INT64 if positions else site.elem_type)
        return declared.get(name) or helper.make_tensor_value_info(name, kind, None)

    inputs = [declared[ids], *(value(name) for name in given if name != ids)]
    outputs = [value(name) for name in (site.output, site.present_key, site.present_value)]
    alone = helper.make_graph([node], "fused", inputs, outputs, stored)
    model = helper.make_model(alone, opset_imports=frozen.model.opset_import, ir_version=frozen.model.ir_version)
    pair = next(pair for pair in frozen.contract.kv if pair.layer == site.layer)
    contract = replace(frozen.contract, kv=(pair,), logits=site.output)
    return replace(frozen, model=model, interface=Interface.of(contract))
