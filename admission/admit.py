"""The admission report of a decoder: every attention found, every check run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qbpass.admission.checks import GRAPH_CHECKS, SITE_CHECKS, fused_attention, no_attention_found
from qbpass.admission.dataflow import Flow
from qbpass.admission.discover import discover_in
from qbpass.admission.lowering import lower
from qbpass.admission.report import AdmissionReport, Diagnostic, SiteReport
from qbpass.admission.site import AttentionSite
from qbpass.admission.subject import Subject
from qbpass.models.decoder import Decoder


def admit(decoder: Decoder, flow: Flow | None = None) -> AdmissionReport:
    """Says of each attention, in layer order, whether it may be rewritten, and if not why not. Changes nothing.

    What the runtime could not feed or the whole graph does to its rows is said beside: it refuses the graph.
    flow: the decoder's, where the caller has it; tracing a graph's calls is most of the work.
    """
    flow = flow or Flow.of(decoder)
    found = discover_in(flow)
    sites = tuple(report.site for report in found if report.site is not None)
    name = decoder.path.name
    about_graph = [Diagnostic(p.code, name, p.message, p.evidence) for p in decoder.interface.problems]
    about_graph += [diagnostic for check in GRAPH_CHECKS if (diagnostic := check(flow, name)) is not None]
    if not found:
        about_graph.append(no_attention_found.refuse(name))
    checked = [_checked(report, flow, sites) for report in found]
    return AdmissionReport(name, tuple(_with_lowered(checked, decoder, flow)), tuple(about_graph))


def _with_lowered(reports: Sequence[SiteReport], decoder: Decoder, flow: Flow) -> list[SiteReport]:
    """Each fused attention that nothing but being fused stands against, with the site it makes spelled out, checked."""
    wanted = [report for report in reports if _only_fused(report)]
    lowered = lower(decoder, flow) if wanted else None
    if lowered is None:
        return list(reports)
    spelled = Flow.of(lowered.decoder)
    sites = {}
    for report in discover_in(spelled) if lowered.originals else []:
        original = None if report.site is None else lowered.originals.get(report.site.output)
        if report.site is not None and original is not None:
            sites[original.parts["output"]] = replace(report.site, kind=original.kind, fused=original)
    every = tuple(sites.values())
    answers = []
    for report in reports:
        site = sites.get(_output(report)) if report in wanted else None
        left = lowered.left.get(_output(report)) if report in wanted else None
        if left is not None and left.code != fused_attention.CODE:
            report = replace(report, diagnostics=(*report.diagnostics, left))
        if site is not None:
            subject = Subject(site, spelled, every)
            refused = tuple(found for check in SITE_CHECKS if (found := check(subject)) is not None)
            if refused:
                report = replace(report, diagnostics=(*report.diagnostics, *refused))
            else:
                report = replace(report, lowered=site, diagnostics=())
        answers.append(report)
    return answers


def _only_fused(report: SiteReport) -> bool:
    return [diagnostic.code for diagnostic in report.diagnostics] == [fused_attention.CODE]


def _output(report: SiteReport) -> str:
    return "" if report.facts is None else str(report.facts.tensors.get("output", ""))


def _checked(report: SiteReport, flow: Flow, sites: tuple[AttentionSite, ...]) -> SiteReport:
    if report.site is None:
        return report
    subject = Subject(report.site, flow, sites)
    refused = tuple(diagnostic for check in SITE_CHECKS if (diagnostic := check(subject)) is not None)
    return replace(report, diagnostics=(*report.diagnostics, *refused))
