"""Node metadata of an applied rewrite: which site, which layout, in which phases. Readable in any ONNX viewer."""

from __future__ import annotations

from typing import Literal

import onnx

from qbpass.rewrites.phases import Phase, layout_active
from qbpass.rewrites.plan import RewritePlan
from qbpass.rewrites.row_repair.repair import REPAIR_SCOPE, unit_kinds

PREFIX = "qbpass."

#: The layout of a node that runs whatever the layout is: the cache's update, a guard, a size.
EVERY_LAYOUT = "any"


def tag_nodes(
    model: onnx.ModelProto, plan: RewritePlan, emission: Literal["guarded", "active", "native"] = "guarded"
) -> None:
    """Stamp every emitted node (names start with qbpass/) with qbpass.layout, qbpass.phases and, where it belongs to
    one, qbpass.site or qbpass.repair (the kind of operator whose rows it runs apart). A node without tags is as
    exported, and runs whenever its graph does.
    """
    planned = [entry.site.name for entry in plan.sites] + [entry.site.name for entry in plan.chains]
    names = sorted(planned, key=len, reverse=True)
    active = [phase for phase in Phase if layout_active(phase, plan.phase_mask)]
    native = [phase for phase in Phase if phase not in active]
    phases = {"active": active, "native": native, EVERY_LAYOUT: list(Phase)}
    if emission != "guarded":
        phases[EVERY_LAYOUT] = phases[emission]
    written = {part: ",".join((phase.name or "").lower() for phase in which) for part, which in phases.items()}
    _tag_graph(model.graph, names, {"active": plan.layout, "native": "mq", EVERY_LAYOUT: EVERY_LAYOUT}, written)
    _tag_repairs(model.graph, unit_kinds(plan.repairs))


def _tag_repairs(graph: onnx.GraphProto, kinds: dict[str, str]) -> None:
    for node in graph.node:
        number = node.name.removeprefix(f"{REPAIR_SCOPE}/").split("/")[0]
        if node.name.startswith(REPAIR_SCOPE) and number in kinds:
            node.metadata_props.add(key=f"{PREFIX}repair", value=kinds[number])


def _tag_graph(graph: onnx.GraphProto, sites: list[str], layouts: dict[str, str], phases: dict[str, str]) -> None:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _tag_graph(attribute.g, sites, layouts, phases)
        if not node.name.startswith("qbpass/"):
            continue
        site = next((s for s in sites if node.name.startswith(f"qbpass/{s}/")), None)
        part = node.name.removeprefix(f"qbpass/{site}/").split("/")[0] if site is not None else EVERY_LAYOUT
        if part not in layouts:
            part = EVERY_LAYOUT
        entry = {} if site is None else {"site": site}
        for key, value in (entry | {"layout": layouts[part], "phases": phases[part]}).items():
            node.metadata_props.add(key=PREFIX + key, value=value)
