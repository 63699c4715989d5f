"""Fills an AttentionSite from what the walks found."""

from __future__ import annotations

from dataclasses import replace

from qbpass.admission.cache_ties import CacheTie
from qbpass.admission.cached_as import read_join
from qbpass.admission.checks import unknown_shape
from qbpass.admission.dataflow import Flow, Shape, node_name
from qbpass.admission.factors import element_steps, read_scale
from qbpass.admission.facts import AttentionFacts, describe
from qbpass.admission.found import Found
from qbpass.admission.report import SiteReport
from qbpass.admission.site import AttentionSite, SiteNodes
from qbpass.admission.site_sizes import sizes_across


def read_site(found: Found) -> SiteReport:
    """The site, unchecked; UNKNOWN_SHAPE where a head count or head dimension is no constant of the graph."""
    flow, key, value = found.flow, found.key, found.value
    if key is None or value is None:
        raise ValueError(f"{found.name} is tied to no KV pair: run the finding checks first")
    q, output = found.qk.input[0], found.av.node.output[0]
    shapes = {tensor: flow.shape(tensor) for tensor in (q, key.tensor, value.tensor, output)}
    heads, kv_heads = _dim(shapes[q], -3), _dim(shapes[key.tensor], 1)
    head_dim, value_dim = _dim(shapes[q], -1), _dim(shapes[value.tensor], -1)
    if heads is None or kv_heads is None or head_dim is None or value_dim is None:
        diagnostic = unknown_shape.refuse(found, {name: shape and list(shape) for name, shape in shapes.items()})
        return SiteReport(found.name, "decomposed", found.layer, None, (diagnostic,), found.facts())
    nodes = _nodes(found, key, value)
    keys, values = read_join(key, flow), read_join(value, flow)
    mask = _mask(nodes, flow)
    if mask is not None:
        shapes[mask] = flow.shape(mask)
    site = AttentionSite(
        name=found.name,
        kind="decomposed",
        layer=found.layer,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        elem_type=flow.elem_type(q),
        scale=read_scale(nodes, flow),
        q=q,
        k=key.tensor,
        v=value.tensor,
        mask=mask,
        output=output,
        past_key=key.pair.past_key,
        past_value=key.pair.past_value,
        new_key=keys.new,
        new_value=values.new,
        present_key=key.pair.present_key,
        present_value=key.pair.present_value,
        nodes=nodes,
        key_steps=element_steps(nodes.key_path, flow),
        value_steps=element_steps(nodes.value_path, flow),
        old_key=keys.old,
        old_value=values.old,
        key_axes=keys.axes,
        value_axes=values.axes,
        shapes={tensor: shape for tensor, shape in shapes.items() if shape is not None},
    )
    site = replace(site, sizes=sizes_across(site, flow), types=_types(site, flow))
    return SiteReport(site.name, site.kind, site.layer, site, facts=_facts(site, found))


def _types(site: AttentionSite, flow: Flow) -> dict[str, int]:
    named = (
        *(site.q, site.k, site.v, site.mask, site.output, site.past_key, site.past_value, site.present_key),
        *(site.present_value, site.new_key, site.new_value, site.old_key, site.old_value),
    )
    types = {tensor: flow.elem_type(tensor) for tensor in named if tensor}
    return {tensor: kind for tensor, kind in types.items() if kind not in (0, site.elem_type)}


def _facts(site: AttentionSite, found: Found) -> AttentionFacts:
    facts = found.facts()
    tensors = {**facts.tensors, **({"mask": site.mask} if site.mask is not None else {})}
    numbers = ("heads", "kv_heads", "head_dim", "value_dim", "scale")
    return describe(found.flow, tensors, **{name: getattr(site, name) for name in numbers})


def _nodes(found: Found, key: CacheTie, value: CacheTie) -> SiteNodes:
    def path(source: str, sink: str) -> tuple[str, ...]:
        return tuple(node_name(node) for node in found.flow.between(source, sink))

    spelled = found.flow.spelled_out_softmax(found.softmax)
    return SiteNodes(
        key_path=path(key.tensor, found.qk.input[1]),
        qk=node_name(found.qk),
        score_path=path(found.qk.output[0], found.softmax.input[0] if spelled is None else spelled.scores),
        softmax=node_name(found.softmax),
        prob_path=path(found.softmax.output[0], found.av.node.input[0]),
        av=node_name(found.av.node),
        value_path=path(value.tensor, found.av.node.input[1]),
        softmax_parts=() if spelled is None else tuple(node_name(node) for node in spelled.parts),
    )


def _mask(nodes: SiteNodes, flow: Flow) -> str | None:
    """What the last Add before the softmax adds to the scores; None where nothing is added."""
    scores = {*flow.node(nodes.qk).output, *(tensor for name in nodes.score_path for tensor in flow.node(name).output)}
    adds = [flow.node(name) for name in nodes.score_path if flow.node(name).op_type == "Add"]
    added = [str(tensor) for node in adds for tensor in node.input if tensor not in scores]
    return added[-1] if added else None


def _dim(shape: Shape | None, axis: int) -> int | None:
    dim = shape[axis] if shape is not None and len(shape) >= abs(axis) and axis < len(shape) else None
    return dim if isinstance(dim, int) and dim > 0 else None
