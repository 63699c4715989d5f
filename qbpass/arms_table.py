"""A qualification for people. A ratio is shown only for an arm that is the reference in every endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qbpass.screen import table

if TYPE_CHECKING:
    from qbpass.evidence.report import ArmReport, FirstDifference, QualificationReport

COLUMNS = [
    ("arm", False),
    ("endpoints equal", True),
    ("first difference", False),
    ("logit rows equal", True),
    ("seconds", True),
    ("ratio to R", True),
    ("geo. mean", True),
    ("worst prompt", False),
    ("tokens/round", True),
    ("acceptance", True),
    ("k", True),
    ("undrafted", True),
]
ABSENT = "–"


def show_arms(report: QualificationReport) -> None:
    """The table, a row for each arm; where prompts are of several domains, one of the geometric means by domain."""
    table(COLUMNS, [_row(name, arm) for name, arm in report.arms.items()])
    arms = {name: arm.geometric_mean_by_domain for name, arm in report.arms.items() if name != "R"}
    domains = list(dict.fromkeys(domain for means in arms.values() for domain in means))
    if len(domains) > 1:
        columns = [("ratio to R by domain", False), *((name, True) for name in arms)]
        table(columns, [[domain, *(_number(arms[name].get(domain), ".2f") for name in arms)] for domain in domains])


def _row(name: str, arm: ArmReport) -> list[str]:
    return [
        name,
        f"{arm.equal}/{arm.endpoints}",
        _difference(arm.first_difference),
        f"{arm.logit_rows_equal}/{arm.logit_rows}" if arm.logit_rows else ABSENT,
        _number(arm.seconds, ".1f"),
        _number(arm.ratio_to_R, ".2f"),
        _number(arm.geometric_mean, ".2f"),
        ABSENT if arm.worst_prompt is None else f"{arm.worst_prompt.ratio_to_R:.2f} {arm.worst_prompt.prompt}",
        _number(arm.tokens_per_round, ".2f"),
        _number(arm.acceptance, ".0%"),
        _number(arm.mean_k, ".2f"),
        _number(arm.undrafted_rounds, ".0%"),
    ]


def _difference(found: FirstDifference | None) -> str:
    return ABSENT if found is None else f"{found.prompt} @ {found.token}"


def _number(value: float | None, form: str) -> str:
    return ABSENT if value is None else format(value, form)
