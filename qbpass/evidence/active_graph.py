"""A bundle's active layout as one straight-line graph, taken from the bundle's own file: what probes look at."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper

from qbpass.admission.calls.call import Call
from qbpass.admission.probes.fills import Array, aligned
from qbpass.admission.probes.observe import RunnableGraph
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.chains.cache import link_cache_name
from qbpass.rewrites.guard import PHASE_INPUT
from qbpass.rewrites.head import LOGITS_FROM
from qbpass.rewrites.kv_cache import cache_name, segment_name
from qbpass.rewrites.manifest import CacheLayer
from qbpass.rewrites.phases import Phase

NAME = "active"


def active_graph(bundle: Bundle) -> RunnableGraph:
    """The graph that runs where the layout is active, with calls for it. Raises BundleError as `Bundle.graph` does."""
    straight = bundle.manifest.emission == "specialized"
    model = onnx.load_model_from_string(bundle.graph("decoder.active.onnx" if straight else "decoder.onnx"))
    return RunnableGraph(NAME, without_guards(model), bundle.weights, lambda call: _feeds(bundle, model, call))


def without_guards(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every guard's If replaced by the nodes of its active branch. Names are unique over all branches."""
    flat = onnx.ModelProto()
    flat.CopyFrom(model)
    del flat.graph.node[:]
    for node in model.graph.node:
        branch = _active_branch(node)
        if branch is None:
            flat.graph.node.append(node)
            continue
        flat.graph.initializer.extend(branch.initializer)
        flat.graph.node.extend(branch.node)
        for inner, outer in zip(branch.output, node.output, strict=True):
            flat.graph.node.append(helper.make_node("Identity", [inner.name], [outer]))
    return flat


def _active_branch(node: onnx.NodeProto) -> onnx.GraphProto | None:
    if node.op_type != "If" or not node.name.endswith("/guard"):
        return None
    branch: onnx.GraphProto = next(attribute.g for attribute in node.attribute if attribute.name == "then_branch")
    return branch


def _feeds(bundle: Bundle, model: onnx.ModelProto, call: Call) -> Mapping[str, Array]:
    """Every segment reads the whole extent: the first holds all rows, and lengths are sums of rows and keys."""
    random = np.random.default_rng(0)
    names = bundle.manifest.interface
    feeds: dict[str, Array] = {
        names.input_ids: random.integers(0, names.vocab_size, (1, call.queries)),
        PHASE_INPUT: np.array(int(Phase.TARGET_CONTINUATION), np.int64),
        LOGITS_FROM: np.array([0], np.int64),
    }
    if names.attention_mask is not None:
        feeds[names.attention_mask] = np.ones((1, call.extent), np.int64)
    if names.position_ids is not None:
        feeds[names.position_ids] = np.arange(call.past, call.extent, dtype=np.int64)[None]
    wanted = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    chained = {chain.layer for chain in bundle.manifest.chains}
    for layer in names.layers:
        if layer.layer in chained:
            feeds |= _link_feeds(layer, bundle.manifest.max_queries, call, random, wanted)
            continue
        for kind, width in (("key", layer.key_dim), ("value", layer.value_dim)):
            rows = random.standard_normal((call.extent, layer.kv_heads, width), dtype=np.float32)
            name = cache_name(layer.layer, kind)
            feeds[name] = aligned(rows.astype(helper.tensor_dtype_to_np_dtype(wanted[name])))
        for segment in range(bundle.manifest.segments - 1):
            for part in ("key", "value"):
                feeds[segment_name(layer.layer, segment, part)] = feeds[cache_name(layer.layer, part)]
    return {name: value for name, value in feeds.items() if name in wanted}


def _link_feeds(
    layer: CacheLayer, links: int, call: Call, random: np.random.Generator, wanted: Mapping[str, int]
) -> dict[str, Array]:
    """A buffer for each link with a row of the call, scratch for the others (rewrites/chains/cache.py).

    Outside the runtime past and present are not one memory: each link reads what stands here.
    """
    feeds = {}
    for kind, width in (("key", layer.key_dim), ("value", layer.value_dim)):
        rows = random.standard_normal((1, layer.kv_heads, call.extent, width), dtype=np.float32)
        for link in range(links):
            name = link_cache_name(layer.layer, kind, link)
            if name in wanted:
                buffer = rows if link < call.queries else rows[:, :, :1]
                feeds[name] = aligned(buffer.astype(helper.tensor_dtype_to_np_dtype(wanted[name])))
    return feeds
