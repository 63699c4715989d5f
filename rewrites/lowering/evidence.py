"""What was tried of a lowering before its layouts: at one row, and the fused node over qbpass's own cache."""

from __future__ import annotations

from typing import Any

from qbpass.rewrites.lowering.falsify_lowered import LoweredFalsifier
from qbpass.rewrites.lowering.fused_layouts import keeps_fused_rows
from qbpass.rewrites.plan import Layout
from qbpass.rewrites.refused import RewriteRefused


def lowering_evidence(falsifier: LoweredFalsifier, layout: Layout) -> dict[str, Any]:
    """Raises RewriteRefused, with a witness, where the lowering is not the fused operator on this machine."""
    operator = falsifier.operator
    trials = {"native": (falsifier.native_trial(), f"{operator} over a cache updated in place")}
    if not keeps_fused_rows(falsifier.site, layout):
        spelled = (falsifier.lowering_trial(), f"{operator}, spelled out in separate products,")
        trials = {"one_row": spelled, **trials}
    for trial, what in trials.values():
        if trial.differing:
            first = trial.differing[0]
            raise RewriteRefused(
                f"{what} is not {operator} of {falsifier.site.name} on this machine: row {first.row} of "
                f"{first.queries} at past {first.past} differs by {first.max_abs_difference:.3g}",
                [trial.summary()],
            )
    return {"operator": operator, "layout": layout, **{name: t.summary() for name, (t, _) in trials.items()}}
