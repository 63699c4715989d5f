"""From an admission report to a plan: for each kind of site, the cheapest form that could not be falsified here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qbpass.admission.dataflow import Flow
from qbpass.admission.fused_site import FusedSite
from qbpass.admission.lowering import lowered_decoder
from qbpass.admission.report import AdmissionReport, Diagnostic
from qbpass.admission.site import AttentionSite
from qbpass.admission.strides.exported_audit import ExportedGraph
from qbpass.models.decoder import Decoder
from qbpass.models.errors import ModelFileError
from qbpass.models.session import SessionSpec
from qbpass.rewrites.address_audit import SiteAudit
from qbpass.rewrites.chains.plan import ChainPlan
from qbpass.rewrites.chains.planner import plan_chains
from qbpass.rewrites.extents import EVERY_ROW_EXACT, ExtentRule
from qbpass.rewrites.falsify import SiteFalsifier, Trial, tail_rule
from qbpass.rewrites.head import falsify_head
from qbpass.rewrites.lowering.evidence import lowering_evidence
from qbpass.rewrites.lowering.falsify_lowered import LoweredFalsifier
from qbpass.rewrites.lowering.fused_layouts import first_form
from qbpass.rewrites.phases import mask_problem
from qbpass.rewrites.plan import Layout, ProductForm, RewritePlan, SiteForm, SitePlan
from qbpass.rewrites.plan_audit import FIRST_CALLS, audit_plan
from qbpass.rewrites.refused import RewriteRefused as RewriteRefused
from qbpass.rewrites.row_repair.plan_repairs import head_beside_repairs, plan_repairs
from qbpass.rewrites.site_runner import FormNotRun

#: QB's forms, cheapest first: only what must be separated is separated. Where all are false, they are tried again with
#: keys clipped (plan.py).
FORMS: tuple[tuple[ProductForm, ProductForm], ...] = (
    ("rows", "rows"),
    ("rows", "batch"),
    ("batch", "batch"),
    ("batch_transposed", "batch"),
)


def make_plan(
    frozen: Decoder,
    report: AdmissionReport,
    layout: Layout,
    spec: SessionSpec,
    *,
    phase_mask: int = 2,
    prefill: str = "whole",
    max_queries: int = 4,
    force_repairs: Sequence[str] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> RewritePlan:
    """A plan for every site of an admitted decoder. Runs the falsifier once for each distinct kind of site.

    force_repairs: operators (or kinds, by their label) whose rows are run apart though no trial falsifies them.

    Raises RewriteRefused with the codes, with the witness that falsified the last form, with the address that a site
    reads wrongly, or where the layout is to be active in a prefill that the reference evaluates in calls of several
    rows: so must a rewrite. prefill: the reference's (Recipe.prefill).
    """
    problem = mask_problem(phase_mask, prefill)
    if problem is not None:
        raise RewriteRefused(problem)
    sites, fused = _admitted_sites(report, layout)
    frozen = lowered_decoder(frozen, sites)
    exported = ExportedGraph(Flow.of(frozen))
    progress("following the addresses that each site reads")
    first = tuple(SitePlan(site, first_form(site, layout)) for site in sites)
    check_addresses(audit_plan(frozen, RewritePlan(layout, phase_mask, max_queries, first), exported, FIRST_CALLS))
    chosen: dict[tuple[Any, ...], tuple[SiteForm, dict[str, Any]]] = {}
    plans = []
    for site in sites:
        key = signature(frozen, site)
        if key not in chosen:
            progress(f"trying forms of {site.name} (heads {site.heads}/{site.kv_heads}, d {site.head_dim})")
            try:
                falsifier = falsifier_of(site)(frozen, layout, site, sites, max_queries, spec)
            except ModelFileError as error:  # the frozen graph was loaded whole before: it is this part alone
                raise RewriteRefused(f"{site.name} can't be tried here ({error})", of_layout=True) from error
            extra = {}
            if isinstance(falsifier, LoweredFalsifier):
                extra = {"lowering": lowering_evidence(falsifier, layout)}
            form, evidence = choose_form(falsifier, layout)
            chosen[key] = form, {**evidence, **extra}
        form, evidence = chosen[key]
        plans.append(SitePlan(site, form, evidence))
    chains = plan_chains(frozen, fused, max_queries, spec, progress)
    _refuse_false_chains(chains)
    progress("trying the language-model head")
    head = falsify_head(frozen, spec)
    attention = [*(name for site in sites for name in site.nodes.all()), *(chain.node for chain in fused)]
    repairs, repair_evidence = plan_repairs(
        frozen, exported.flow, attention, max_queries, spec, force=force_repairs, progress=progress
    )
    head = head_beside_repairs(head, frozen.contract.logits, repairs)
    plan = RewritePlan(
        layout, phase_mask, max_queries, tuple(plans), head["form"], head, chains, repairs, repair_evidence
    )
    progress("following the addresses of the chosen forms")
    return _with_addresses(plan, audit_plan(frozen, plan, exported))


def check_addresses(audits: Mapping[str, SiteAudit]) -> None:
    """Raises RewriteRefused with every problem, the first one named."""
    distinct = {id(audit): audit for audit in audits.values()}.values()  # sites of one kind share their audit
    refuse_problems([problem for audit in distinct for problem in audit.problems])


def refuse_problems(problems: Sequence[Diagnostic]) -> None:
    """Raises RewriteRefused where an audit found any."""
    if problems:
        code, seen = problems[0].code, problems[0].evidence
        raise RewriteRefused(
            f"{problems[0].site} does not read what it must ({code}: {problems[0].message}; {seen['graph']} graph, "
            f"{seen['queries']} row(s) behind {seen['past']}): this graph can't be rewritten",
            problems=problems,
        )


def _with_addresses(plan: RewritePlan, audits: Mapping[str, SiteAudit]) -> RewritePlan:
    """The plan with a summary of each site's audit as evidence."""
    check_addresses(audits)
    summaries = {id(audit): audit.summary() for audit in audits.values()}
    sites = tuple(
        replace(entry, evidence={**entry.evidence, "addresses": summaries[id(audits[entry.site.name])]})
        for entry in plan.sites
    )
    return replace(plan, sites=sites)


def _admitted_sites(report: AdmissionReport, layout: Layout) -> tuple[list[AttentionSite], list[FusedSite]]:
    """Attentions of separate products, lowered ones among them, and fused operators that are evaluated query by query:
    as they are under PQ, where they can be.
    """
    chained = [entry for entry in report.sites if entry.chain is not None and (layout == "pq" or not entry.lowered)]
    fused = [entry.chain for entry in chained if entry.chain is not None]
    read = ((entry.site or entry.lowered) for entry in report.sites if entry.admitted and entry not in chained)
    sites = [site for site in read if site is not None]
    if not report.admitted:
        admitted = len(sites) + len(fused)
        raise RewriteRefused(f"{_refused(report, admitted)}: see `qbpass admit` for the reasons", report=report)
    if fused and layout != "pq":
        raise RewriteRefused(
            f"{fused[0].name} is one fused operator, which {layout.upper()} can't open: rewrite with --layout pq",
            report=report,
            of_layout=True,
        )
    return sites, fused


def _refuse_false_chains(chains: Sequence[ChainPlan]) -> None:
    for chain in chains:
        if chain.evidence["verdict"] == "false":
            trials = chain.evidence["trials"]
            witness = trials[-1]["witness"]
            raise RewriteRefused(
                f"{chain.site.name} evaluated query by query is false on this machine: row {witness['row']} of "
                f"{witness['queries']} at past {witness['past']} differs by {witness['max_abs_difference']:.3g}",
                trials,
            )


def _refused(report: AdmissionReport, admitted: int) -> str:
    of_sites = sorted({d.code for site in report.sites for d in site.diagnostics})
    of_graph = sorted({d.code for d in report.graph_diagnostics})
    parts = []
    if admitted < len(report.sites):
        parts.append(
            f"{len(report.sites) - admitted} of {len(report.sites)} attention sites are refused ({', '.join(of_sites)})"
        )
    if of_graph:
        parts.append(f"the graph is refused ({', '.join(of_graph)})")
    return " and ".join(parts) or "no attention site was found"


def falsifier_of(site: AttentionSite) -> type[SiteFalsifier]:
    return SiteFalsifier if site.fused is None else LoweredFalsifier


def choose_form(falsifier: SiteFalsifier, layout: Layout) -> tuple[SiteForm, dict[str, Any]]:
    """The first form that survives, with every trial as evidence."""
    trials: list[dict[str, Any]] = []
    rules: list[tuple[SiteForm, ExtentRule | None]] = []
    for qk, av in FORMS if layout == "qb" else FORMS[1:2]:
        form, rule = replace(first_form(falsifier.site, layout), qk=qk, av=av), None
        trial = _tried(falsifier, form, trials)
        if trial is None:
            continue
        if trial.differing and layout == "qb":
            rule = tail_rule(trial, falsifier.pasts, falsifier.max_queries)
            if rule is not None:
                form, trial = _tried_or_spare(falsifier, SiteForm(qk, av, rule), trials)
        if trial is not None and not trial.differing:
            return form, {"verdict": "unknown", "trials": trials}
        rules.append((form, rule))
    for clipped in _clipped(rules, layout):
        form, trial = _tried_or_spare(falsifier, clipped, trials)
        if trial is not None and not trial.differing:
            return form, {"verdict": "unknown", "trials": trials}
    raise RewriteRefused(_no_form(falsifier, layout, trials), trials)


def _tried(falsifier: SiteFalsifier, form: SiteForm, trials: list[dict[str, Any]]) -> Trial | None:
    """The form's trial, told of in `trials`; None where it can't be run here."""
    try:
        trial = falsifier.trial(form)
    except FormNotRun as error:
        trials.append({**Trial(form).summary(), "verdict": "not run", "reason": str(error)})
        return None
    trials.append(trial.summary())
    return trial


def _tried_or_spare(
    falsifier: SiteFalsifier, form: SiteForm, trials: list[dict[str, Any]]
) -> tuple[SiteForm, Trial | None]:
    """The form and its trial; with spare rows where it can't be run here and may have a segment without rows."""
    trial = _tried(falsifier, form, trials)
    if trial is None and form.extents.segments(falsifier.max_queries) > 1:
        form = replace(form, spare=True)
        trial = _tried(falsifier, form, trials)
    return form, trial


def _no_form(falsifier: SiteFalsifier, layout: Layout, trials: Sequence[Mapping[str, Any]]) -> str:
    witness = next((trial["witness"] for trial in reversed(trials) if trial["witness"] is not None), None)
    what = f"every {layout.upper()} form of {falsifier.site.name}"
    if witness is None:
        return f"{what} fails to run on this machine: {trials[-1]['reason']}"
    return (
        f"{what} is false on this machine: row {witness['row']} of {witness['queries']} at past {witness['past']} "
        f"differs by {witness['max_abs_difference']:.3g}"
    )


def _clipped(rules: Sequence[tuple[SiteForm, ExtentRule | None]], layout: Layout) -> Iterator[SiteForm]:
    """The forms again with keys and mask columns ended where a row's values end, by the rule measured, then row by row.

    PQ ends every row at its own extent anyway.
    """
    for form, rule in rules:
        if layout == "pq":
            yield replace(form, clip="keys")
            continue
        if rule is not None and rule != EVERY_ROW_EXACT:
            yield replace(form, extents=rule, clip="keys")
        yield replace(form, extents=EVERY_ROW_EXACT, clip="keys")


def signature(frozen: Decoder, site: AttentionSite) -> tuple[Any, ...]:
    """Two sites with the same signature run the same kernels on the same shapes."""
    wanted = set(site.nodes.all())
    ops = []
    for node in frozen.model.graph.node:
        if node.output and node.output[0] in wanted:
            attrs = tuple(sorted((a.name, a.SerializeToString()) for a in node.attribute))
            ops.append((node.domain, node.op_type, attrs))
    types = (site.elem_type, site.value_type, site.type_of(site.mask or ""))
    if site.fused is not None:
        ops.append((site.fused.kind, *sorted(entry.SerializeToString() for entry in site.fused.node.attribute)))
    return (site.heads, site.kv_heads, site.head_dim, site.value_dim, types, tuple(ops))
