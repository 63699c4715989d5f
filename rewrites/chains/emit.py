"""A chain in place of one fused operator: the operator itself, once a link, each over the memory the last one wrote.

Evaluated alone, a query's operator reads its own row, the cache with every earlier row written, and its own lengths; so
does a link. Whatever the operator does inside, it does the same.
"""

from __future__ import annotations

from typing import Any

import onnx_graphsurgeon as gs

from qbpass.admission.fused_site import FusedSite
from qbpass.rewrites.builder import NodeBuilder
from qbpass.rewrites.chains.cache import LinkCache, declare_link
from qbpass.rewrites.chains.links import Links

#: Shape can name one axis from this operator set on.
SHAPE_OF_AXES = 15


def emit_chain(
    builder: NodeBuilder, site: FusedSite, node: gs.Node, links: Links, opset: int
) -> tuple[gs.Node, list[LinkCache]]:
    """The node that gives the site's output (1, q, H*dv), its one output still to be set, and each link's cache.

    node: the operator as exported. The chain's nodes are added to `builder`.
    """
    caches: list[LinkCache] = []
    outputs: list[Any] = []
    for number in range(len(links.links)):
        cache = declare_link(site, number)
        scope = NodeBuilder(f"{builder.scope}/link{number}", constants=builder.constants)
        behind = _behind(scope, outputs[-1], opset) if outputs else None
        output = gs.Variable(f"{scope.scope}/output", dtype=node.outputs[0].dtype)
        scope.nodes.append(
            gs.Node(
                node.op,
                f"{scope.scope}/operator",
                attrs=dict(node.attrs),
                inputs=_operands(scope, site, node, links, number, cache, behind),
                outputs=[output, cache.key, cache.value],
                domain=node.domain,
            )
        )
        builder.nodes.extend(scope.nodes)
        outputs.append(output)
        caches.append(cache)
    return _joined(builder, outputs, links), caches


def _joined(builder: NodeBuilder, outputs: list[Any], links: Links) -> gs.Node:
    """Rows of every link in order; what links without a row gave stands behind the call's q rows, and is cut off."""
    if len(outputs) == 1:
        return gs.Node("Identity", f"{builder.scope}/output", inputs=outputs)
    every = builder.node("Concat", outputs, "every_link", axis=1, dtype=outputs[0].dtype)
    bounds = [builder.ints(0), links.q, builder.ints(1)]
    return gs.Node("Slice", f"{builder.scope}/output", inputs=[every, *bounds])


def _operands(
    builder: NodeBuilder,
    site: FusedSite,
    node: gs.Node,
    links: Links,
    number: int,
    cache: LinkCache,
    behind: Any,
) -> list[Any]:
    operands = list(node.inputs)
    link = links.links[number]
    seqlens_k, total = links.lengths(operands[site.seqlens_k_at], operands[site.total_at], number)
    whole = len(links.links) == 1  # the native graph: nothing is cut
    for place, axis in site.row_axes.items():
        if whole:
            continue
        starts, ends, axes = [link.start], [link.end], [axis]
        if place in site.key_axes:
            starts.append(builder.ints(0))
            ends.append(links.columns(total, number))
            axes.append(site.key_axes[place])
        bounds = [_vector(builder, part, f"operand{place}/{name}") for part, name in ((starts, "from"), (ends, "to"))]
        # The first operand's slice waits for the link before: the steps it takes are read off that link's output.
        steps = [behind] if behind is not None and place == min(site.row_axes) else []
        operands[place] = builder.node(
            "Slice",
            [operands[place], *bounds, builder.ints(*axes), *steps],
            f"operand{place}",
            dtype=operands[place].dtype,
        )
    operands[site.past_key_at], operands[site.past_value_at] = cache.key_in, cache.value_in
    operands[site.seqlens_k_at], operands[site.total_at] = seqlens_k, total
    return operands


def _vector(builder: NodeBuilder, parts: list[Any], name: str) -> Any:
    return parts[0] if len(parts) == 1 else builder.node("Concat", parts, name, axis=0, dtype="int64")


def _behind(builder: NodeBuilder, output: Any, opset: int) -> Any:
    """(1,) int64 holding 1, the number of streams, that can't be known before the link that gives `output` has run.

    The links write and read one memory through tensors of different names, so no dependence of data says that a link
    comes after the one before. This does.
    """
    if opset >= SHAPE_OF_AXES:
        return builder.node("Shape", [output], "streams", start=0, end=1, dtype="int64")
    shape = builder.node("Shape", [output], "behind", dtype="int64")
    return builder.node("Slice", [shape, builder.ints(0), builder.ints(1)], "streams", dtype="int64")
