"""A qualification as a picture: how fast each arm was, and how many of its logit rows are the reference's.

An SVG file of its own, no fonts, scripts or other files in it. An arm that differs in one endpoint has no bar of speed.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from qbpass.json_file import write_text

if TYPE_CHECKING:
    from qbpass.evidence.report import ArmReport, QualificationReport

LEFT, BAR, ROW, TOP = 90, 260, 34, 64
COLUMNS = (LEFT, LEFT + BAR + 110)
EXACT, OTHER, TRACK, INK = "#2b7a4b", "#b4552d", "#e8e6e1", "#222222"


def write_picture(path: Path, report: QualificationReport) -> None:
    """Write the picture to `path`, whole or not at all."""
    write_text(path, arms_svg(report))


def arms_svg(report: QualificationReport) -> str:
    """The SVG's text: a row for each arm, speed on the left, equal rows on the right."""
    fastest = max([arm.ratio_to_R or 0.0 for arm in report.arms.values()] + [1.0])
    rows = [_arm(index, name, arm, fastest) for index, (name, arm) in enumerate(report.arms.items())]
    width, height = COLUMNS[1] + BAR + 130, TOP + ROW * len(rows) + 24
    title = f"{len(report.prompts)} prompts, {report.max_new_tokens} new tokens, draft {report.draft}, k <= {report.k}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="13">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            _text(12, 22, title),
            _text(COLUMNS[0], 48, "seconds of R / seconds of the arm"),
            _text(COLUMNS[1], 48, "logit rows equal, byte for byte"),
            *rows,
            "</svg>\n",
        ]
    )


def _arm(index: int, name: str, arm: ArmReport, fastest: float) -> str:
    y = TOP + ROW * index
    ratio = arm.ratio_to_R
    speed = f"– ({arm.equal} of {arm.endpoints} endpoints equal)" if ratio is None else f"{ratio:.2f}"
    parts = [_text(12, y + 15, name), _bar(COLUMNS[0], y, (ratio or 0.0) / fastest, EXACT, speed)]
    if arm.logit_rows:
        color = EXACT if arm.logit_rows_equal == arm.logit_rows else OTHER
        label = f"{arm.logit_rows_equal} of {arm.logit_rows}"
        parts.append(_bar(COLUMNS[1], y, arm.logit_rows_equal / arm.logit_rows, color, label))
    return "\n".join(parts)


def _bar(x: int, y: int, share: float, color: str, label: str) -> str:
    return "\n".join(
        [
            f'<rect x="{x}" y="{y}" width="{BAR}" height="20" fill="{TRACK}"/>',
            f'<rect x="{x}" y="{y}" width="{BAR * share:.1f}" height="20" fill="{color}"/>',
            _text(x + 6 if share == 0 else x + BAR + 8, y + 15, label),
        ]
    )


def _text(x: int, y: int, text: str) -> str:
    return f'<text x="{x}" y="{y}" fill="{INK}">{escape(text)}</text>'
