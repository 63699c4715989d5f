"""The picture says what the table says: no bar of speed for an arm that differs, equal rows as they were counted."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from test_arms_table import arm, report

from qbpass.arms_picture import BAR, EXACT, OTHER, arms_svg, write_picture

SVG = "{http://www.w3.org/2000/svg}"


def bars(text: str) -> list[tuple[str, float]]:
    """(colour, width) of every bar that is not a track or the ground."""
    rectangles = ElementTree.fromstring(text).iter(f"{SVG}rect")
    return [(r.attrib["fill"], float(r.attrib["width"])) for r in rectangles if r.attrib["fill"] in (EXACT, OTHER)]


def test_an_arm_that_differs_has_no_bar_of_speed_and_its_equal_rows_in_the_other_colour() -> None:
    text = arms_svg(report(C_QB=arm(3), C_MQ=arm(2, 10, repaired=False)))
    assert bars(text) == [(EXACT, BAR), (EXACT, BAR), (EXACT, 0.0), (OTHER, BAR / 4)]
    assert "– (2 of 3 endpoints equal)" in text
    assert "10 of 40" in text


def test_speeds_share_one_scale_that_the_reference_is_on() -> None:
    text = arms_svg(report(R=arm(3).model_copy(update={"ratio_to_R": 1.0, "logit_rows": 0}), C_QB=arm(3)))
    assert bars(text) == [(EXACT, BAR / 1.25), (EXACT, BAR), (EXACT, BAR)]


def test_the_file_is_written_whole(tmp_path: Path) -> None:
    write_picture(tmp_path / "arms.svg", report(C_QB=arm(3)))
    assert (tmp_path / "arms.svg").read_text(encoding="utf-8") == arms_svg(report(C_QB=arm(3)))
