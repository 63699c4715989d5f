"""The picture of a site as a rewrite emits it: the rewriter's own nodes, for this one site.

The plan is QB's default form, without falsification: which form a bundle takes, `qbpass rewrite` finds out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from onnx import helper

from qbpass.reports.node_index import NodeIndex
from qbpass.reports.picture import Picture
from qbpass.reports.site_picture import Subject, Tensors, node_key, paint, shape_text

if TYPE_CHECKING:
    from qbpass.admission.calls.call import Call
    from qbpass.admission.dataflow import Flow
    from qbpass.admission.site import AttentionSite
    from qbpass.models.contract import CachePair

MAX_QUERIES = 4
_IDS, _LOGITS = "qbpass.token_ids", "qbpass.logits"


def rewritten_picture(site: AttentionSite, flow: Flow) -> Picture:
    """The nodes from a site's queries, new rows, cache and mask to its output under QB, up to MAX_QUERIES rows.

    Raises ContractError where the rewriter does, and where the site's KV pair is not complete.
    """
    from qbpass.rewrites.kv_cache import cache_name, updated_name

    rewritten = _rewrite(site, flow)
    index = NodeIndex(rewritten)
    ends = {tensor: called for tensor, called in ((site.q, "queries"), (site.mask, "mask")) if tensor is not None}
    leaving, joins = {}, []
    for part in ("key", "value"):
        ends[cache_name(site.layer, part)] = f"cached {part}s"
        leaving[updated_name(site.layer, part)] = f"cached {part}s"
        joins.append(updated_name(site.layer, part))
    given = {value.name for value in rewritten.graph.input}
    for name, called in ((site.new_key, "new keys"), (site.new_value, "new values")):
        maker = None if name is None or name in given else flow.producer(name)
        ends[name if maker is None else maker.input[0]] = called  # type: ignore[index]
    subject = Subject({site.output: "output"}, ends, leaving, cache=joins, scope=f"qbpass/{site.name}/")
    return paint(index, Tensors(_shapes(rewritten, site, flow), _scalars(index, flow)), subject)


def _rewrite(site: AttentionSite, flow: Flow) -> onnx.ModelProto:
    """The site alone, through the rewriter: the whole decoder's nodes would take seconds and change nothing."""
    from qbpass.models.decoder import Decoder
    from qbpass.models.errors import ContractError
    from qbpass.models.interface import Interface
    from qbpass.rewrites.apply import rewrite_graph
    from qbpass.rewrites.plan import RewritePlan, SiteForm, SitePlan

    pair = next((pair for pair in flow.interface.kv if pair.layer == site.layer), None)
    if pair is None or site.new_key is None or site.new_value is None:
        raise ContractError(f"{site.name} has no complete KV pair: there is nothing to rewrite")
    interface = Interface(_IDS, None, None, _LOGITS, 1, kv=(pair,))
    decoder = Decoder(Path("site.onnx"), _site_alone(site, pair, flow), interface)
    alone = replace(site, sizes={})  # who asks for them is not here
    return rewrite_graph(decoder, RewritePlan("qb", 2, MAX_QUERIES, (SitePlan(alone, SiteForm()),)), "active")


def _site_alone(site: AttentionSite, pair: CachePair, flow: Flow) -> onnx.ModelProto:
    """The site's nodes, those that join its cache, and what turns or casts around them; what they read are inputs."""
    names = dict.fromkeys((*site.nodes.all(), *_joins(site, flow)))
    nodes = sorted((flow.node(name) for name in names), key=lambda node: flow.position(node_key(node)))
    made = {name for node in nodes for name in node.output}
    weights = {tensor.name: tensor for tensor in flow.model.graph.initializer}
    read = dict.fromkeys((site.q, *(name for node in nodes for name in node.input if name and name not in made)))
    read.update(dict.fromkeys(name for name in (pair.past_key, pair.past_value, site.mask) if name is not None))
    inputs = [name for name in read if name not in weights]
    graph = helper.make_graph(
        nodes,
        "site",
        [helper.make_tensor_value_info(_IDS, onnx.TensorProto.INT64, [1, "queries"]), *map(_of(flow), inputs)],
        [_of(flow)(site.output), *(_of(flow)(name) for name in (pair.present_key, pair.present_value) if name)],
        [weights[name] for name in read if name in weights],
    )
    return helper.make_model(graph, opset_imports=list(flow.model.opset_import), ir_version=10)


def _joins(site: AttentionSite, flow: Flow) -> list[str]:
    from qbpass.admission.cached_as import joined_in

    found = []
    for rows, new in ((site.k, site.new_key), (site.v, site.new_value)):
        maker = flow.producer(new) if new is not None else None
        found += [node_key(maker)] if maker is not None and maker.op_type == "Transpose" else []
        makers = map(flow.producer, joined_in(rows, flow))
        found += [node_key(maker) for maker in makers if maker is not None]
    around = (site.old_key, site.old_value, site.present_key, site.present_value)
    makers = map(flow.producer, filter(None, around))
    return [*found, *(node_key(maker) for maker in makers if maker is not None)]


def _of(flow: Flow) -> Callable[[str], onnx.ValueInfoProto]:
    def info(tensor: str) -> onnx.ValueInfoProto:
        shape = flow.shape(tensor)
        return helper.make_tensor_value_info(tensor, flow.elem_type(tensor), None if shape is None else list(shape))

    return info


def _scalars(index: NodeIndex, flow: Flow) -> Callable[[str], float | None]:
    def scalar(tensor: str) -> float | None:
        stored = index.scalar(tensor)
        return flow.scalar(index.renamed(tensor)) if stored is None else stored

    return scalar


def _shapes(rewritten: onnx.ModelProto, site: AttentionSite, flow: Flow) -> Callable[[str], str]:
    """Shapes of the rewritten site, read off the same calls as admission reads an export's off."""
    from qbpass.admission.calls.call import CALLS
    from qbpass.admission.calls.fit import fit_extent
    from qbpass.admission.calls.trace import CallTrace
    from qbpass.models.interface import Interface

    nothing = Interface(None, None, None, None, None)
    traces = [CallTrace(_in_call(rewritten, site, flow, call), nothing, call) for call in CALLS]

    def text(tensor: str) -> str:
        shapes = [shape for trace in traces if (shape := trace.shape(tensor)) is not None]
        if len(shapes) < len(traces) or len({len(shape) for shape in shapes}) != 1:
            return ""
        fitted = [fit_extent(sizes) for sizes in zip(*shapes, strict=True)]
        return shape_text(None if e is None else str(e) if (size := e.value()) is None else size for e in fitted)

    return text


def _in_call(rewritten: onnx.ModelProto, site: AttentionSite, flow: Flow, call: Call) -> onnx.ModelProto:
    """The rewritten site with the sizes of one call in place of every symbol."""
    from qbpass.rewrites.kv_cache import cache_name

    sizes: dict[str, list[int | None]] = {
        _IDS: [1, call.queries],
        cache_name(site.layer, "key"): [call.extent, site.kv_heads, site.head_dim],
        cache_name(site.layer, "value"): [call.extent, site.kv_heads, site.value_dim],
    }
    model = onnx.ModelProto()
    model.CopyFrom(rewritten)
    for value in model.graph.input:
        known = flow.trace(call).shape(value.name)
        shape = sizes.get(value.name, None if known is None else list(known))
        value.CopyFrom(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shape))
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return model
