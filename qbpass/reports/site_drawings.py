"""Drawings for a page: for each kind of site, the site as the graph has it, and as a rewrite would leave it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from qbpass.reports.drawing import drawing
from qbpass.reports.groups import Group
from qbpass.reports.node_index import NodeIndex
from qbpass.reports.plain import visible
from qbpass.reports.site_picture import Tensors, shape_text

if TYPE_CHECKING:
    from qbpass.admission.dataflow import Flow
    from qbpass.admission.site import AttentionSite

DRAWN = 8  # kinds of site


@dataclass(frozen=True)
class Drawn:
    """One kind. before, after: svg elements; without_after: why there is no after."""

    label: str
    site: str
    admitted: bool
    before: Markup
    marks: bool  # whether a box of `before` is marked
    after: Markup | None
    without_after: str


def draw_groups(groups: Sequence[Group], flow: Flow) -> list[Drawn]:
    """The first site of each of the first DRAWN groups; groups that name no node of the graph are passed over."""
    index = NodeIndex(flow.model)
    found = (_drawn(group, flow, index) for group in groups[:DRAWN])
    return [drawn for drawn in found if drawn is not None]


def _drawn(group: Group, flow: Flow, index: NodeIndex) -> Drawn | None:
    from qbpass.reports.exported_site import exported_picture

    report = group.first
    name = visible(report.name, 80)
    tensors = Tensors(lambda tensor: shape_text(flow.shape(tensor)), flow.scalar)
    picture = exported_picture(report, index, tensors)
    if picture is None:
        return None
    after, why = _after(group, flow)
    marks = any(box.marked for box in picture.boxes)
    before = Markup(drawing(picture, f"{name} as the graph has it"))  # drawing() escapes what it is given
    return Drawn(group.label, name, report.admitted, before, marks, after, why)


def _after(group: Group, flow: Flow) -> tuple[Markup | None, str]:
    from qbpass.admission.dataflow import Flow as Dataflow
    from qbpass.admission.lowering import lowered_decoder
    from qbpass.models.decoder import Decoder

    report = group.first
    if report.lowered is not None:
        spelled = lowered_decoder(Decoder(Path("model.onnx"), flow.model, flow.interface), [report.lowered])
        return _rewritten(report.lowered, Dataflow.of(spelled), visible(report.name, 80))
    if report.chain is not None:
        return None, "The operator stays whole and is evaluated once a query, over one cache (layout pq)."
    if report.site is None or not report.admitted:
        return None, ""
    if report.kind != "decomposed":
        return None, "How this operator is rewritten is not drawn."
    return _rewritten(report.site, flow, visible(report.name, 80))


def _rewritten(site: AttentionSite, flow: Flow, name: str) -> tuple[Markup | None, str]:
    from qbpass.models.errors import ContractError
    from qbpass.reports.rewritten_site import rewritten_picture

    try:
        picture = rewritten_picture(site, flow)
    except ContractError as error:
        return None, f"There is no rewrite to draw: {visible(str(error), 400)}"
    return Markup(drawing(picture, f"{name} after the rewrite")), ""
