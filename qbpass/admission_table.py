"""An admission report for people: equal sites in one row, and every refusal with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from qbpass.screen import say, table

if TYPE_CHECKING:
    from qbpass.admission.report import AdmissionReport, SiteReport

COLUMNS = [
    ("site", False),
    ("kind", False),
    ("heads", True),
    ("KV heads", True),
    ("d", True),
    ("mask", False),
    ("verdict", False),
    ("codes", False),
]


def show_admission(report: AdmissionReport, *, every_site: bool) -> None:
    """The table, then one line a refusal, then a sentence. every_site: no two sites share a row."""
    rows = [[_label(sites), *cells] for sites, cells in _grouped(report.sites, every_site)]
    if rows:
        table(COLUMNS, rows)
    for diagnostic in report.graph_diagnostics:
        say(f"{diagnostic.code}: {diagnostic.message}")
    for site in report.sites:
        for diagnostic in site.diagnostics:
            say(f"{site.name}: {diagnostic.code}: {diagnostic.message}")
    admitted = sum(site.admitted for site in report.sites)
    say(f"{admitted} of {len(report.sites)} attention sites of {report.model} are admitted")


def _grouped(sites: Sequence[SiteReport], every_site: bool) -> list[tuple[list[SiteReport], list[str]]]:
    """Neighbours whose cells are equal, with those cells."""
    if every_site:
        return [([site], _cells(site)) for site in sites]
    return [(list(group), cells) for cells, group in groupby(sites, key=_cells)]


def _label(sites: Sequence[SiteReport]) -> str:
    if len(sites) == 1:
        return sites[0].name
    return f"layers {sites[0].layer}–{sites[-1].layer}"


def _cells(report: SiteReport) -> list[str]:
    site = report.site
    shape = ["", "", "", ""]
    if site is not None:
        shape = [str(site.heads), str(site.kv_heads), str(site.head_dim), "yes" if site.mask else "none"]
    verdict = "admitted" if report.admitted else "refused"
    return [report.kind, *shape, verdict, ", ".join(sorted({d.code for d in report.diagnostics}))]
