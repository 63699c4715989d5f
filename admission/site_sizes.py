"""Sizes of an attention's own tensors that the rest of the graph asks for.

An export computes reshape targets and slices of the mask from the shapes of keys, values and scores. A rewritten
attention has no such tensors, but their sizes are known: they are computed anew from the call's own lengths.
"""

from __future__ import annotations

import onnx

from qbpass.admission.dataflow import Flow, node_name
from qbpass.admission.extents import PAST, QUERIES, Extent
from qbpass.admission.site import AttentionSite


def sizes_asked_outside(site: AttentionSite, flow: Flow) -> dict[str, tuple[Extent, ...]]:
    """Inner and cache tensors that a Shape outside the attention reads, with their size where it is known."""
    sizes = {}
    for tensor in (*inner_tensors(site, flow), *cache_tensors(site, flow)):
        if any(node.op_type == "Shape" for node in outside_readers(site, tensor, flow)):
            extents = flow.extents(tensor)
            if extents is not None and all(_computable(extent) for extent in extents):
                sizes[tensor] = tuple(extent for extent in extents if extent is not None)
    return sizes


def inner_tensors(site: AttentionSite, flow: Flow) -> list[str]:
    """What the site's nodes make, but for its output."""
    names = dict.fromkeys(site.nodes.all())
    return [tensor for name in names if name != site.nodes.av for tensor in flow.node(name).output if tensor]


def cache_tensors(site: AttentionSite, flow: Flow) -> list[str]:
    """The pasts with what only renames them, and the presents."""
    pasts = [name for past in (site.past_key, site.past_value) if past for name in flow.aliases(past)]
    return list(dict.fromkeys([*pasts, site.k, site.v]))


def outside_readers(site: AttentionSite, tensor: str, flow: Flow) -> list[onnx.NodeProto]:
    """Nodes that read the tensor and are not the site's."""
    own = set(site.nodes.all())
    return [node for node in flow.consumers(tensor) if node_name(node) not in own]


def _computable(extent: Extent | None) -> bool:
    return extent is not None and all(symbol in (QUERIES, PAST, "1") for symbol, _ in extent.terms)
