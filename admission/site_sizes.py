"""Sizes that are asked for across an attention's border.

An export computes slices of the mask from the shape of repeated keys, and reshape targets inside an attention from the
shape of hidden states. A rewritten attention has no repeated keys, and one that is cut out has no hidden states; but
the sizes are known, and are computed anew from the call's own lengths.
"""

from __future__ import annotations

import onnx

from qbpass.admission.cached_as import joined_in
from qbpass.admission.dataflow import Flow, node_name
from qbpass.admission.extents import PAST, QUERIES, Extent
from qbpass.admission.site import AttentionSite

SIZE_NODES = (
    256  # of the arithmetic between the sizes an attention asks for and its own nodes; TorchScript has about 60
)


def sizes_across(site: AttentionSite, flow: Flow) -> dict[str, tuple[Extent, ...]]:
    """Tensors of which a Shape is read across the attention's border, with their size where it is known.

    Outwards: inner and cache tensors that a Shape outside reads. Inwards: whatever tensors' sizes the attention's own
    reshapes and slices are computed from.
    """
    own = (*inner_tensors(site, flow), *cache_tensors(site, flow))
    out = [t for t in own if any(node.op_type == "Shape" for node in outside_readers(site, t, flow))]
    sizes = {}
    for tensor in (*out, *_sizes_read(site, flow)):
        extents = flow.extents(tensor)
        if extents is not None and all(_computable(extent) for extent in extents):
            sizes[tensor] = tuple(extent for extent in extents if extent is not None)
    return sizes


def _sizes_read(site: AttentionSite, flow: Flow) -> list[str]:
    """Tensors whose Shape the site's nodes depend on otherwise than through queries, keys, values and mask."""
    own = set(site.nodes.all())
    seen = {site.q, site.k, site.v, *filter(None, (site.mask,))}
    pending = [read for name in own for read in flow.node(name).input if read]
    found: list[str] = []
    while pending and len(seen) < SIZE_NODES:
        tensor = pending.pop()
        node = flow.producer(tensor)
        if node is None or tensor in seen:
            continue
        seen.add(tensor)
        if node.op_type == "Shape" and node_name(node) not in own:
            found.append(str(node.input[0]))
        else:
            pending.extend(read for read in node.input if read)
    return list(dict.fromkeys(found))


def inner_tensors(site: AttentionSite, flow: Flow) -> list[str]:
    """What the site's nodes make, but for its output."""
    names = dict.fromkeys(site.nodes.all())
    return [tensor for name in names if name != site.nodes.av for tensor in flow.node(name).output if tensor]


def cache_tensors(site: AttentionSite, flow: Flow) -> list[str]:
    """The pasts with what only renames, turns or narrows them, and the presents."""
    pasts = (site.past_key, site.past_value, site.old_key, site.old_value)
    names = [name for past in pasts if past for name in flow.aliases(past)]
    return list(dict.fromkeys([*names, *joined_in(site.k, flow), *joined_in(site.v, flow)]))


def outside_readers(site: AttentionSite, tensor: str, flow: Flow) -> list[onnx.NodeProto]:
    """Nodes that read the tensor and are not the site's."""
    own = set(site.nodes.all())
    return [node for node in flow.consumers(tensor) if node_name(node) not in own]


def _computable(extent: Extent | None) -> bool:
    return extent is not None and all(symbol in (QUERIES, PAST, "1") for symbol, _ in extent.terms)
