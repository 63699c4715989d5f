"""A ratio is shown only for an arm whose every endpoint is the reference's."""

from __future__ import annotations

import pytest

from qbpass.arms_table import show_arms
from qbpass.evidence.report import ArmReport, FirstDifference, QualificationReport


def arm(equal: int, rows_equal: int = 40, *, repaired: bool = True) -> ArmReport:
    return ArmReport(
        endpoints=3,
        equal=equal,
        first_difference=None if equal == 3 else FirstDifference(prompt="story", token=17),
        logit_rows=40,
        logit_rows_equal=rows_equal,
        first_row_difference=None,
        rows_by_width_and_alignment={},
        seconds=2.0,
        ratio_to_R=1.25 if equal == 3 else None,
        tokens_per_round=1.5,
        acceptance=0.25,
        repaired=repaired,
    )


def report(**arms: ArmReport) -> QualificationReport:
    return QualificationReport.model_construct(arms=arms, prompts=(), draft="ngram", k=3, max_new_tokens=8)


def test_an_arm_with_one_differing_endpoint_has_a_dash_and_its_first_difference(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_arms(report(C_QB=arm(3), C_MQ=arm(2, 11, repaired=False)))
    _, whole, partial = capsys.readouterr().out.splitlines()
    assert whole.split() == ["C_QB", "3/3", "–", "40/40", "2.0", "1.25", "1.50", "25%"]
    assert partial.split() == ["C_MQ", "2/3", "story", "@", "17", "11/40", "2.0", "–", "1.50", "25%"]


def test_plain_speculation_never_decides_and_repaired_arms_always_do() -> None:
    assert report(C_QB=arm(3), C_MQ=arm(0, 0, repaired=False)).exact
    assert not report(C_QB=arm(2)).exact
    assert not report(C_QB=arm(3, 39)).exact
