"""The admission report of a decoder: every attention found, every check run."""

from __future__ import annotations

from dataclasses import replace

from qbpass.admission.checks import GRAPH_CHECKS, SITE_CHECKS, no_attention_found
from qbpass.admission.dataflow import Flow
from qbpass.admission.discover import discover_in
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
    return AdmissionReport(name, tuple(_checked(report, flow, sites) for report in found), tuple(about_graph))


def _checked(report: SiteReport, flow: Flow, sites: tuple[AttentionSite, ...]) -> SiteReport:
    if report.site is None:
        return report
    subject = Subject(report.site, flow, sites)
    refused = tuple(diagnostic for check in SITE_CHECKS if (diagnostic := check(subject)) is not None)
    return replace(report, diagnostics=(*report.diagnostics, *refused))
