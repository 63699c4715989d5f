"""Sites with equal answers, together: the rows of a report's table, on a terminal or on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from qbpass.reports.plain import visible

if TYPE_CHECKING:
    from qbpass.admission.facts import AttentionFacts
    from qbpass.admission.report import SiteReport

_RANGES_SHOWN = 6


@dataclass(frozen=True)
class Cells:
    """What a row says of its sites. Empty text: the graph does not say."""

    part: str  # what its sites' names begin with: attention, cross_attention
    kind: str
    heads: str
    kv_heads: str
    head_dim: str
    value_dim: str
    dtypes: str  # of q, k and v; one where they agree
    mask: str  # yes | none
    scale: str
    verdict: str  # admitted | refused
    codes: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """Sites, in layer order, whose cells are equal."""

    sites: tuple[SiteReport, ...]
    cells: Cells

    @property
    def first(self) -> SiteReport:
        return self.sites[0]

    @property
    def label(self) -> str:
        """A site's own name, or the layers of several."""
        if len(self.sites) == 1:
            return visible(self.first.name, 80)
        layers = sorted({site.layer for site in self.sites if site.layer >= 0})
        part = "" if self.cells.part == "attention" else f"{self.cells.part}, "
        if not layers:
            return f"{part}{len(self.sites)} of no layer"
        several = f" ({len(self.sites)} sites)" if len(layers) != len(self.sites) else ""
        return f"{part}layer{'s' * (len(layers) > 1)} {_ranges(layers)}{several}"


def grouped(sites: Sequence[SiteReport], *, every_site: bool = False) -> list[Group]:
    """Groups in the order of their first sites. every_site: a group for each site."""
    if every_site:
        return [Group((site,), cells_of(site)) for site in sites]
    found: dict[Cells, list[SiteReport]] = {}
    for site in sites:
        found.setdefault(cells_of(site), []).append(site)
    return [Group(tuple(members), cells) for cells, members in found.items()]


def cells_of(report: SiteReport) -> Cells:
    """The row of one site."""
    facts = report.facts
    return Cells(
        part=visible(report.name.partition(".")[0], 40),
        kind=visible(report.kind, 40),
        heads=_number(facts, "heads"),
        kv_heads=_number(facts, "kv_heads"),
        head_dim=_number(facts, "head_dim"),
        value_dim=_number(facts, "value_dim"),
        dtypes="" if facts is None else _dtypes(facts),
        mask=_mask(report),
        scale="" if facts is None or facts.scale is None else f"{facts.scale:.6g}",
        verdict=_verdict(report),
        codes=tuple(sorted({diagnostic.code for diagnostic in report.diagnostics})),
    )


def _verdict(report: SiteReport) -> str:
    if not report.admitted:
        return "refused"
    if report.lowered is not None:
        return "admitted, by lowering"
    return "admitted" if report.chain is None else "admitted, query by query"


def _number(facts: AttentionFacts | None, field: str) -> str:
    value = getattr(facts, field, None)
    return "" if value is None else str(value)


def _dtypes(facts: AttentionFacts) -> str:
    named = [facts.tensors.get(part, "") for part in ("q", "k", "v")]
    return "/".join(dict.fromkeys(facts.dtypes[name] for name in named if name in facts.dtypes))


def _mask(report: SiteReport) -> str:
    if report.facts is not None and "mask" in report.facts.tensors:
        return "yes"
    return "" if report.site is None else "none"


def _ranges(layers: Sequence[int]) -> str:
    """`0–29`; `0, 2, …, 24` where every so manieth; `0–3, 5, 7–9` otherwise."""
    steps = {b - a for a, b in pairwise(layers)}
    if len(layers) > 3 and len(steps) == 1 and steps != {1}:
        return f"{layers[0]}, {layers[1]}, …, {layers[-1]}"
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    more = f", … ({len(layers)} layers)" if len(shown) > _RANGES_SHOWN else ""
    return ", ".join(shown[:_RANGES_SHOWN]) + more
