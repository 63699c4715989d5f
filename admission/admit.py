"""The admission report of a decoder: every attention found, every check run."""

from __future__ import annotations

from dataclasses import replace

from qbpass.admission.checks import SITE_CHECKS, no_attention_found
from qbpass.admission.dataflow import Flow
from qbpass.admission.discover import discover_in
from qbpass.admission.report import AdmissionReport, SiteReport
from qbpass.admission.site import AttentionSite
from qbpass.admission.subject import Subject
from qbpass.models.decoder import Decoder


def admit(decoder: Decoder) -> AdmissionReport:
    """Says of each attention, in layer order, whether it may be rewritten, and if not why not. Changes nothing."""
    flow = Flow.of(decoder)
    found = discover_in(flow)
    sites = tuple(report.site for report in found if report.site is not None)
    nothing = () if found else (no_attention_found.refuse(decoder.path.name),)
    return AdmissionReport(decoder.path.name, tuple(_checked(report, flow, sites) for report in found), nothing)


def _checked(report: SiteReport, flow: Flow, sites: tuple[AttentionSite, ...]) -> SiteReport:
    if report.site is None:
        return report
    subject = Subject(report.site, flow, sites)
    refused = tuple(diagnostic for check in SITE_CHECKS if (diagnostic := check(subject)) is not None)
    return replace(report, diagnostics=(*report.diagnostics, *refused))
