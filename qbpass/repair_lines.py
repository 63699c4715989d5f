"""What `qbpass rewrite` says of operators outside attention: a line a falsified kind, and one of all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qbpass.reports.plain import visible

if TYPE_CHECKING:
    from qbpass.rewrites.row_repair.repair import RowRepair


def repair_lines(repairs: Sequence[RowRepair], evidence: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """repairs and evidence: a plan's."""
    lines = [_repair(repair, evidence[repair.kind]) for repair in repairs]
    survived = [kind for kind in evidence.values() if kind["verdict"] == "unknown" and "reason" not in kind]
    if survived:
        rows = sum(kind["trials"][0]["rows"] for kind in survived)
        lines.append(
            f"  rows of {len(survived)} other kind(s) of operators ({_nodes(survived)}): unknown, {rows} rows tried "
            "and none differs from the row alone"
        )
    return [visible(line) for line in (*lines, *_untried(evidence))]


def _repair(repair: RowRepair, evidence: Mapping[str, Any]) -> str:
    form = "one row a call" if repair.rows_per_call == 1 else f"{repair.rows_per_call} rows a call"
    exported = evidence["trials"][0]
    witness = exported["witness"]
    if witness is None:
        found = f"unknown, none of {exported['rows']} rows differs from the row alone; repaired as asked: {form}"
    else:
        found = (
            f"false, {exported['rows_differing']} of {exported['rows']} rows differ from the row alone; first row "
            f"{witness['row']} of {witness['queries']} of {witness['node']}, by {witness['max_abs_difference']:.3g} "
            f"(seed {witness['seed']}, {witness['sizes']} rows); repaired: {form}"
        )
    return f"  {repair.kind} ({_nodes([evidence])}): {found}"


def _untried(evidence: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for label, kind in evidence.items():
        if "reason" in kind:
            yield f"  {label} ({_nodes([kind])}): unknown, not tried: {kind['reason']}"


def _nodes(kinds: Sequence[Mapping[str, Any]]) -> str:
    count = sum(kind["nodes"] for kind in kinds)
    return f"{count} node{'s' if count != 1 else ''}"
