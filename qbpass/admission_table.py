"""An admission report for people: equal sites in one row, and every refusal with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qbpass.reports.groups import Group, grouped
from qbpass.reports.plain import visible
from qbpass.screen import say, say_hanging, table

if TYPE_CHECKING:
    from qbpass.admission.report import AdmissionReport
    from qbpass.reports.looked_at import LookedAt

_MESSAGE = 600  # characters of a message: names in it come from the graph


def show_admission(report: AdmissionReport, looked_at: LookedAt | None = None, *, every_site: bool) -> None:
    """The table, a line a reason, a sentence, and which graph was looked at. every_site: no two sites share a row."""
    groups = grouped(report.sites, every_site=every_site)
    if groups:
        table(*_table(groups))
    for diagnostic in report.graph_diagnostics:
        say_hanging(f"the graph: {_reason(diagnostic.code, diagnostic.message)}")
    for line in _refusals(groups):
        say_hanging(line)
    hint = _hint(report)
    if hint is not None:
        say_hanging(hint)
    admitted = sum(site.admitted for site in report.sites)
    model = report.model if looked_at is None else looked_at.model
    say(f"{admitted} of {len(report.sites)} attention sites of {visible(model)} are admitted")
    if looked_at is not None:
        say_hanging(looked_at.sentence)


def _table(groups: Sequence[Group]) -> tuple[list[tuple[str, bool]], list[list[str]]]:
    """Columns and rows. The value's dimension and the types have a column where they say something."""
    wide = any(group.cells.value_dim != group.cells.head_dim for group in groups)
    typed = any(group.cells.dtypes not in ("float32", "") for group in groups)
    columns = [("site", False), ("kind", False), ("heads", True), ("KV heads", True), ("d", True)]
    columns += [("dv", True)] * wide + [("type", False)] * typed
    columns += [("mask", False), ("verdict", False), ("codes", False)]
    return columns, [_row(group, wide, typed) for group in groups]


def _row(group: Group, wide: bool, typed: bool) -> list[str]:
    cells = group.cells
    shape = [cells.heads, cells.kv_heads, cells.head_dim, *[cells.value_dim] * wide, *[cells.dtypes] * typed]
    return [group.label, cells.kind, *shape, cells.mask, cells.verdict, ", ".join(cells.codes)]


def _refusals(groups: Sequence[Group]) -> Iterator[str]:
    """A line for each code of a group: the first site's reason; others' reasons differ in names at most."""
    for group in groups:
        for diagnostic in group.first.diagnostics:
            others = {d.message for site in group.sites for d in site.diagnostics if d.code == diagnostic.code}
            which = f" ({visible(group.first.name, 80)}; --all shows each)" if len(others) > 1 else ""
            yield f"{group.label}: {_reason(diagnostic.code, diagnostic.message)}{which}"


def _reason(code: str, message: str) -> str:
    return f"{code}: {visible(message, _MESSAGE)}"


def _hint(report: AdmissionReport) -> str | None:
    """Where one thing stands between the whole model and admission, that it is one."""
    codes = {frozenset(d.code for d in site.diagnostics) for site in report.sites}
    if (
        any(site.admitted for site in report.sites)
        or len(report.sites) < 2
        or len(codes) != 1
        or len(code := next(iter(codes))) != 1
    ):
        return None
    return f"Every site is refused for this one reason: `qbpass admit --html FILE` says what {next(iter(code))} means."
