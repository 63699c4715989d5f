"""Node metadata of an applied rewrite: which site, which layout, in which phases. Readable in any ONNX viewer."""

from __future__ import annotations

import onnx

from qbpass.rewrites.phases import Phase
from qbpass.rewrites.plan import RewritePlan

PREFIX = "qbpass."


def tag_nodes(model: onnx.ModelProto, plan: RewritePlan) -> None:
    """Stamp every emitted node (names start with qbpass/) with qbpass.site, qbpass.layout and qbpass.phases."""
    names = sorted((entry.site.name for entry in plan.sites), key=len, reverse=True)
    active = ",".join(p.name.lower() for p in Phase if p.name and p & plan.phase_mask)
    native = ",".join(p.name.lower() for p in Phase if p.name and not p & plan.phase_mask)
    _tag_graph(model.graph, names, plan.layout, active, native)


def _tag_graph(graph: onnx.GraphProto, sites: list[str], layout: str, active: str, native: str) -> None:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _tag_graph(attribute.g, sites, layout, active, native)
        if not node.name.startswith("qbpass/"):
            continue
        site = next((s for s in sites if node.name.startswith(f"qbpass/{s}/")), None)
        if site is None:
            continue
        part = node.name.removeprefix(f"qbpass/{site}/").split("/")[0]
        entry = {"site": site}
        if part == "active":
            entry |= {"layout": layout, "phases": active}
        elif part == "native":
            entry |= {"layout": "mq", "phases": native}
        for key, value in entry.items():
            node.metadata_props.add(key=PREFIX + key, value=value)
