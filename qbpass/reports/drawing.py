"""A picture as inline SVG. Colours are the page's (templates/page.css); every text is escaped by the XML library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from xml.etree import ElementTree

from qbpass.reports.layered import Layout, lay_out
from qbpass.reports.picture import Box, Line, Picture

BOX_HEIGHT, ROW_GAP, COLUMN_GAP, MARGIN = 36.0, 42.0, 14.0, 10.0
TITLE_CHAR, DETAIL_CHAR, SHAPE_CHAR = 7.3, 5.9, 5.9  # widths of the page's fonts, on the safe side
MIN_WIDTH, MAX_WIDTH = 62.0, 190.0
TURN = 6.0  # how far a line moves aside before it counts as turning


@dataclass(frozen=True)
class _Label:
    text: str
    left: float
    y: float

    @property
    def right(self) -> float:
        return self.left + len(self.text) * SHAPE_CHAR


def drawing(picture: Picture, label: str) -> str:
    """An svg element. label: what it shows, for those who can't see it."""
    widths = {box.key: _width(box) for box in picture.boxes}
    layout = lay_out(picture, widths, COLUMN_GAP)
    labels = _labels(picture, layout)
    left = min([0.0, *(label.left - MARGIN for label in labels)])
    right = max([layout.width + 2 * MARGIN, *(label.right + MARGIN for label in labels)])
    width, height = right - left, _y(layout.rows - 1) + BOX_HEIGHT + MARGIN
    svg = ElementTree.Element(
        "svg",
        {"viewBox": f"{left:.0f} 0 {width:.0f} {height:.0f}", "width": f"{width:.0f}", "height": f"{height:.0f}"}
        | {"class": "site", "role": "img", "aria-label": label},
    )
    for line, passes in zip(picture.lines, layout.passes, strict=True):
        _draw_line(svg, line, _bent(picture, line, passes, layout, widths))
    for box in picture.boxes:
        _draw_box(svg, box, layout.x[box.key] + MARGIN, _y(layout.row[box.key]), widths[box.key])
    for shape in labels:
        place = {"class": "shape", "x": f"{shape.left:.1f}", "y": f"{shape.y:.1f}"}
        ElementTree.SubElement(svg, "text", place).text = shape.text
    return ElementTree.tostring(svg, encoding="unicode")


def _width(box: Box) -> float:
    wanted = max(len(box.title) * TITLE_CHAR, len(box.detail) * DETAIL_CHAR) + 16
    return min(max(wanted, MIN_WIDTH), MAX_WIDTH)


def _y(row: int) -> float:
    return MARGIN + row * (BOX_HEIGHT + ROW_GAP)


def _bent(
    picture: Picture, line: Line, passes: Sequence[tuple[float, int]], layout: Layout, widths: dict[str, float]
) -> list[tuple[float, float]]:
    """The points a line goes through: out of its source's bottom, past each row, into its own place on the target."""
    points = [(passes[0][0] + MARGIN, _y(passes[0][1]) + BOX_HEIGHT)]
    for x, row in passes[1:-1]:
        points += [(x + MARGIN, _y(row)), (x + MARGIN, _y(row) + BOX_HEIGHT)]
    arriving = sorted(
        (other_passes[-2][0], index)
        for index, (other, other_passes) in enumerate(zip(picture.lines, layout.passes, strict=True))
        if other.target == line.target
    )
    place = [index for _, index in arriving].index(picture.lines.index(line))
    share = (place + 1) / (len(arriving) + 1) - 0.5
    return [*points, (passes[-1][0] + MARGIN + share * widths[line.target] * 0.8, _y(passes[-1][1]))]


def _draw_line(svg: ElementTree.Element, line: Line, points: list[tuple[float, float]]) -> None:
    (x, y), *rest = points
    path = f"M{x:.1f} {y:.1f}"
    for to_x, to_y in rest:
        steep = (to_y - y) * 0.75  # lines leave downwards, past the shapes beside them
        path += f" C{x:.1f} {y + steep:.1f} {to_x:.1f} {to_y - steep:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = to_x, to_y
    ElementTree.SubElement(svg, "path", {"class": "indirect" if line.indirect else "flow", "d": path})
    arrow = f"M{x - 3.5:.1f} {y - 6:.1f} L{x + 3.5:.1f} {y - 6:.1f} L{x:.1f} {y:.1f} Z"
    ElementTree.SubElement(svg, "path", {"class": "arrow", "d": arrow})


def _draw_box(svg: ElementTree.Element, box: Box, x: float, y: float, width: float) -> None:
    group = ElementTree.SubElement(svg, "g", {"class": f"box {box.role}{' marked' if box.marked else ''}"})
    if box.hint:
        ElementTree.SubElement(group, "title").text = box.hint
    corner = BOX_HEIGHT / 2 if box.role == "tensor" else 5
    place = {"x": f"{x - width / 2:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}", "height": f"{BOX_HEIGHT:.0f}"}
    ElementTree.SubElement(group, "rect", place | {"rx": f"{corner:.0f}"})
    for text, kind, below in ((box.title, "title", 15), (box.detail, "detail", 28)):
        entry = ElementTree.SubElement(group, "text", {"class": kind, "x": f"{x:.1f}", "y": f"{y + below:.1f}"})
        entry.text = text


def _labels(picture: Picture, layout: Layout) -> list[_Label]:
    """A tensor's shape once, under the box it comes from; above the readers where a box gives several tensors."""
    labels = []
    lines = sorted(zip(picture.lines, layout.passes, strict=True), key=lambda entry: entry[0].source)
    for source, group in groupby(lines, key=lambda entry: entry[0].source):
        labelled = [(line.label, line.tensor, passes) for line, passes in group if line.label]
        if len({tensor for _, tensor, _ in labelled}) == 1:
            turns = [passes[1][0] - passes[0][0] for _, _, passes in labelled]
            labels.append(_beside(labelled[0][0], layout.x[source], _y(layout.row[source]) + BOX_HEIGHT, turns))
        else:
            for text, _, passes in labelled:
                x, row = passes[-1]
                labels.append(_beside(text, x, _y(row) - 24, [passes[-2][0] - x]))
    return _apart(labels)


def _beside(text: str, x: float, y: float, turns: list[float]) -> _Label:
    """Beside the line, on the side it does not turn to; between lines that turn to both."""
    width = len(text) * SHAPE_CHAR
    left, right = min(turns) < -TURN, max(turns) > TURN
    shift, below = (-width / 2, 25) if left and right else (-6 - width, 13) if right else (6, 13)
    return _Label(text, x + MARGIN + shift, y + below)


def _apart(labels: Sequence[_Label]) -> list[_Label]:
    """Where two would lie on each other, the one further right is put lower."""
    placed: list[_Label] = []
    for label in sorted(labels, key=lambda label: (label.y, label.left)):
        while any(
            abs(label.y - other.y) < 10 and label.left < other.right and other.left < label.right for other in placed
        ):
            label = replace(label, y=label.y + 11)
        placed.append(label)
    return placed
