"""A ratio is shown only for an arm whose every endpoint is the reference's."""

from __future__ import annotations

import pytest

from qbpass.arms_table import show_arms
from qbpass.evidence.report import ArmReport, FirstDifference, PromptRatio, QualificationReport


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
        geometric_mean=1.24 if equal == 3 else None,
        worst_prompt=PromptRatio(prompt="poem", ratio_to_R=0.98) if equal == 3 else None,
        geometric_mean_by_domain={"story": 1.3, "verse": 1.0} if equal == 3 else {},
        tokens_per_round=1.5,
        acceptance=0.25,
        mean_k=0.75,
        undrafted_rounds=0.6,
        repaired=repaired,
    )


def report(**arms: ArmReport) -> QualificationReport:
    return QualificationReport.model_construct(
        arms=arms, prompts=(), draft="ngram", policy="fixed", k=3, max_new_tokens=8
    )


def test_an_arm_with_one_differing_endpoint_has_a_dash_and_its_first_difference(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_arms(report(C_QB=arm(3), C_MQ=arm(2, 11, repaired=False)))
    _, whole, partial, *_ = capsys.readouterr().out.splitlines()
    rest = ["1.50", "25%", "0.75", "60%"]
    assert whole.split() == ["C_QB", "3/3", "–", "40/40", "2.0", "1.25", "1.24", "0.98", "poem", *rest]
    assert partial.split() == ["C_MQ", "2/3", "story", "@", "17", "11/40", "2.0", "–", "–", "–", *rest]


def test_domains_have_a_table_of_their_own_where_there_are_several(capsys: pytest.CaptureFixture[str]) -> None:
    show_arms(report(R=arm(3), C_QB=arm(3), C_MQ=arm(2, repaired=False)))
    assert [line.split() for line in capsys.readouterr().out.splitlines()[4:]] == [
        ["ratio", "to", "R", "by", "domain", "C_QB", "C_MQ"],
        ["story", "1.30", "–"],
        ["verse", "1.00", "–"],
    ]
    one = arm(3).model_copy(update={"geometric_mean_by_domain": {"story": 1.3}})
    show_arms(report(R=one, C_QB=one))
    assert "domain" not in capsys.readouterr().out


def test_plain_speculation_never_decides_and_repaired_arms_always_do() -> None:
    assert report(C_QB=arm(3), C_MQ=arm(0, 0, repaired=False)).exact
    assert not report(C_QB=arm(2)).exact
    assert not report(C_QB=arm(3, 39)).exact
