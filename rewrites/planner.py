"""From an admission report to a plan: for each kind of site, the cheapest form that could not be falsified here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qbpass.admission.report import AdmissionReport
from qbpass.admission.site import AttentionSite
from qbpass.models.decoder import Decoder
from qbpass.models.errors import QbpassError
from qbpass.models.session import SessionSpec
from qbpass.rewrites.falsify import SiteFalsifier, tail_rule
from qbpass.rewrites.head import falsify_head
from qbpass.rewrites.phases import PREFILL_PHASES
from qbpass.rewrites.plan import Layout, ProductForm, RewritePlan, SiteForm, SitePlan

#: QB's forms, cheapest first: only what must be separated is separated.
FORMS: tuple[tuple[ProductForm, ProductForm], ...] = (
    ("rows", "rows"),
    ("rows", "batch"),
    ("batch", "batch"),
    ("batch_transposed", "batch"),
)


class RewriteRefused(QbpassError):
    """Some site may not be rewritten, or every form of one was falsified on this machine."""

    def __init__(
        self, message: str, trials: Sequence[dict[str, Any]] = (), report: AdmissionReport | None = None
    ) -> None:
        super().__init__(message)
        self.trials = tuple(trials)
        self.report = report


def make_plan(
    frozen: Decoder,
    report: AdmissionReport,
    layout: Layout,
    spec: SessionSpec,
    *,
    phase_mask: int = 2,
    max_queries: int = 4,
    progress: Callable[[str], None] = lambda text: None,
) -> RewritePlan:
    """A plan for every site of an admitted decoder. Runs the falsifier once for each distinct kind of site.

    Raises RewriteRefused with the codes, with the witness that falsified the last form, or where the layout is to be
    active in prefill: the reference evaluates its prompt in one call of the exported layout, and so must a rewrite.
    """
    if phase_mask & PREFILL_PHASES:
        raise RewriteRefused(
            f"phase mask {phase_mask} rewrites prefill, and this reference prefills the whole prompt in one native "
            "call: leave 1 and 4 out of --phase-mask"
        )
    sites = _admitted_sites(report)
    chosen: dict[tuple[Any, ...], tuple[SiteForm, dict[str, Any]]] = {}
    plans = []
    for site in sites:
        key = signature(frozen, site)
        if key not in chosen:
            progress(f"trying forms of {site.name} (heads {site.heads}/{site.kv_heads}, d {site.head_dim})")
            falsifier = SiteFalsifier(frozen, layout, site, sites, max_queries, spec)
            chosen[key] = choose_form(falsifier, layout)
        form, evidence = chosen[key]
        plans.append(SitePlan(site, form, evidence))
    progress("trying the language-model head")
    head = falsify_head(frozen, spec)
    return RewritePlan(layout, phase_mask, max_queries, tuple(plans), head["form"], head)


def _admitted_sites(report: AdmissionReport) -> list[AttentionSite]:
    sites = [entry.site for entry in report.sites if entry.admitted and entry.site is not None]
    if not report.admitted:
        codes = sorted(
            {d.code for s in report.sites for d in s.diagnostics} | {d.code for d in report.graph_diagnostics}
        )
        raise RewriteRefused(
            f"{len(report.sites) - len(sites)} of {len(report.sites)} attention sites are refused "
            f"({', '.join(codes)}): see `qbpass admit` for each site's reason",
            report=report,
        )
    return sites


def choose_form(falsifier: SiteFalsifier, layout: Layout) -> tuple[SiteForm, dict[str, Any]]:
    """The first form that survives, with every trial as evidence."""
    trials: list[dict[str, Any]] = []
    forms = FORMS if layout == "qb" else FORMS[1:2]
    for qk, av in forms:
        form = SiteForm(qk, av)
        trial = falsifier.trial(form)
        trials.append(trial.summary())
        if trial.differing:
            rule = tail_rule(trial, falsifier.pasts, falsifier.max_queries) if layout == "qb" else None
            if rule is None:
                continue
            form = SiteForm(qk, av, rule)
            trial = falsifier.trial(form)
            trials.append(trial.summary())
        if not trial.differing:
            return form, {"verdict": "unknown", "trials": trials}
    witness = trials[-1]["witness"]
    raise RewriteRefused(
        f"every {layout.upper()} form of {falsifier.site.name} is false on this machine: row {witness['row']} of "
        f"{witness['queries']} at past {witness['past']} differs by {witness['max_abs_difference']:.3g}",
        trials,
    )


def signature(frozen: Decoder, site: AttentionSite) -> tuple[Any, ...]:
    """Two sites with the same signature run the same kernels on the same shapes."""
    wanted = set(site.nodes.all())
    ops = []
    for node in frozen.model.graph.node:
        if node.output and node.output[0] in wanted:
            attrs = tuple(sorted((a.name, a.SerializeToString()) for a in node.attribute))
            ops.append((node.domain, node.op_type, attrs))
    return (site.heads, site.kv_heads, site.head_dim, site.value_dim, site.elem_type, tuple(ops))
