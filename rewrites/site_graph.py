"""A decoder reduced to one attention: what a rewrite of that attention alone needs of the graph.

A large decoder has thousands of nodes, and a falsifier cuts a site out of a rewritten graph for every form it tries.
"""

from __future__ import annotations

from dataclasses import replace

import onnx
from onnx import helper

from qbpass.admission.site import AttentionSite
from qbpass.models.decoder import Decoder
from qbpass.models.graph_order import node_reads
from qbpass.models.interface import Interface
from qbpass.rewrites.plan import RewritePlan


def site_alone(frozen: Decoder, site: AttentionSite) -> Decoder:
    """The same decoder with the nodes of `site` and of what they compute sizes from; its interface has one KV pair.

    Queries, new keys and values and the mask are graph inputs.
    """
    graph = frozen.model.graph
    makers = {output: node for node in graph.node for output in node.output if output}
    inputs = _given(site, makers)
    factors = [step.factor for step in (*site.key_steps, *site.value_steps) if step.factor]
    wanted = {site.output, site.present_key or site.k, site.present_value or site.v, *factors}
    nodes, reads = _closure(makers, wanted, set(inputs))
    declared = {value.name: value for value in (*graph.input, *graph.output, *graph.value_info)}
    own = [value for value in graph.input if value.name in reads or value.name == frozen.contract.input_ids]
    alone = helper.make_graph(
        [node for node in graph.node if id(node) in nodes],
        "site",
        [*own, *(_value(declared, name, site) for name in inputs if name not in {v.name for v in own})],
        [_value(declared, name, site) for name in sorted(wanted)],
        [tensor for tensor in graph.initializer if tensor.name in reads],
    )
    model = helper.make_model(alone, opset_imports=frozen.model.opset_import, ir_version=frozen.model.ir_version)
    pair = next(pair for pair in frozen.contract.kv if pair.layer == site.layer)
    contract = replace(frozen.contract, kv=(pair,), logits=site.output)
    return replace(frozen, model=model, interface=Interface.of(contract))


def _given(site: AttentionSite, makers: dict[str, onnx.NodeProto]) -> list[str]:
    """The tensors that a site alone is given. A lowered site's are what its fused node reads: that node stays, too."""
    given = [site.q, site.new_key, site.new_value, site.mask]
    if site.fused is not None:
        joined = [] if site.fused.appends else [site.fused.parts["k"], site.fused.parts["v"]]  # made of new rows here
        read = [name for name in site.fused.operands if name in makers and name not in joined]
        given = [*read, *((site.new_key, site.new_value) if joined else ())]
    return list(dict.fromkeys(name for name in given if name))


def plan_alone(plan: RewritePlan, site: AttentionSite) -> RewritePlan:
    """The plan for that site alone, under the extent rule that all sites of the plan share."""
    entry = next(entry for entry in plan.sites if entry.site.name == site.name)
    form = entry.form if plan.layout == "pq" else replace(entry.form, extents=plan.extents)
    return replace(plan, sites=(replace(entry, form=form),), chains=(), head="all", repairs=())


def _closure(makers: dict[str, onnx.NodeProto], wanted: set[str], given: set[str]) -> tuple[set[int], set[str]]:
    """Nodes (by identity) that `wanted` is made by, not looking behind `given`; and every tensor they read."""
    nodes: set[int] = set()
    reads: set[str] = set()
    pending = list(wanted)
    while pending:
        node = makers.get(pending.pop())
        if node is None or id(node) in nodes:
            continue
        nodes.add(id(node))
        fresh = [name for name in node_reads(node) if name not in reads]
        reads.update(fresh)
        pending.extend(name for name in fresh if name not in given)
    return nodes, reads


def _value(declared: dict[str, onnx.ValueInfoProto], name: str, site: AttentionSite) -> onnx.ValueInfoProto:
    known = declared.get(name)
    kind = site.type_of(name) if site.fused is None else site.fused.types.get(name, site.type_of(name))
    return known if known is not None else helper.make_tensor_value_info(name, kind, None)
