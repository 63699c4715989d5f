"""No repair without a witness: a plan from elsewhere is looked at before a graph is written from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qbpass.rewrites.refused import RewriteRefused

if TYPE_CHECKING:
    from qbpass.rewrites.plan import RewritePlan


def check_asked_for(plan: RewritePlan) -> None:
    """Raises RewriteRefused where a repair is neither forced nor of a kind that a trial falsified."""
    for repair in plan.repairs:
        verdict = plan.repair_evidence.get(repair.kind, {}).get("verdict")
        if verdict != "false" and not repair.forced:
            raise RewriteRefused(
                f"no trial falsified the rows of {repair.kind}, so they are not run apart: leave that repair out of "
                "the plan, or force it (--force-repair)"
            )


def refuse_forced(force_repairs: Sequence[str]) -> None:
    """Of a layout that runs every operator one row at a time: raises RewriteRefused where repairs are forced, too."""
    if force_repairs:
        raise RewriteRefused(
            f"GS runs every operator one row at a time: leave out --force-repair {force_repairs[0]}, or take another "
            "layout"
        )
