"""A decomposed attention over a cache of 8 bits is told so, whatever else is wrong with it."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper
from site_graphs import make_decoder

from qbpass.admission import admit
from qbpass.models.decoder import Decoder


def with_eight_bits(decoder: Decoder) -> Decoder:
    """The cache in int8: new rows are quantized before they are joined, and all scaled back when read."""
    graph = decoder.model.graph
    graph.initializer.append(numpy_helper.from_array(np.array(0.1, np.float32), "scale"))
    graph.initializer.append(numpy_helper.from_array(np.array(0, np.int8), "zero"))
    caches = {f"{when}.0.{part}" for when in ("past", "present") for part in ("key", "value")}
    for value in (*graph.input, *graph.output):
        if value.name in caches:
            value.type.tensor_type.elem_type = TensorProto.INT8
    nodes: list[NodeProto] = []
    for node in graph.node:
        if node.output[0] in caches:
            nodes.append(
                helper.make_node("QuantizeLinear", [node.input[1], "scale", "zero"], [f"{node.input[1]}.int8"])
            )
            node.input[1] = nodes[-1].output[0]
        for place, name in enumerate(node.input):
            if name in caches and node.output[0] not in caches:
                node.input[place] = f"{name}.float"
        nodes.append(node)
        if node.output[0] in caches:
            name = node.output[0]
            nodes.append(helper.make_node("DequantizeLinear", [name, "scale", "zero"], [f"{name}.float"]))
    kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)
    return decoder


def test_a_cache_of_eight_bits_is_quantized() -> None:
    (report,) = admit(with_eight_bits(make_decoder())).sites
    found = {diagnostic.code: diagnostic for diagnostic in report.diagnostics}
    assert found["QUANTIZED_KV"].evidence["types"] == dict.fromkeys(
        ("past.0.key", "past.0.value", "present.0.key", "present.0.value"), "int8"
    )
    assert "DTYPE_QUERY_KEY" in found


def test_a_cache_of_floats_is_not() -> None:
    (report,) = admit(make_decoder()).sites
    assert report.admitted
