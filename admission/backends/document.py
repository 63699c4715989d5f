"""A support report as JSON."""

from __future__ import annotations

from typing import Any

from qbpass.admission.backends.answers import Answer, Refutation, SupportReport

SCHEMA_VERSION = 1  # qbpass/reports/support_model.py


def support_document(report: SupportReport) -> dict[str, Any]:
    """The form `qbpass support --json` writes: one entry for each refutation, one for each descriptor without any."""
    return {
        "schema_version": SCHEMA_VERSION,
        "backend": report.backend,
        "project": report.project,
        "version": report.version,
        "verdict": report.verdict,
        **report.details,
        "notes": list(report.notes),
        "rules_asked": [{"rule": rule, "versions": versions} for rule, versions in report.asked],
        "rules_not_asked": [{"rule": rule, "versions": versions} for rule, versions in report.not_asked],
        "answers": [entry for answer in report.answers for entry in _entries(answer)],
    }


def _entries(answer: Answer) -> list[dict[str, Any]]:
    return [_entry(answer, refutation) for refutation in answer.refutations or (None,)]


def _entry(answer: Answer, refutation: Refutation | None) -> dict[str, Any]:
    descriptor = answer.descriptor
    return {
        "site": descriptor.site,
        "operator": descriptor.label,
        "verdict": answer.verdict,
        "rule": None if refutation is None else refutation.rule,
        "versions": None if refutation is None else refutation.versions,
        "reason": None if refutation is None else refutation.answer.reason,
        "evidence": {} if refutation is None else dict(refutation.answer.evidence),
        "sources": [] if refutation is None else list(refutation.sources),
        "descriptor": descriptor.to_json(),
    }
