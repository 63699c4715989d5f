"""Why sites are refused, by code: what the code means, and what was found at which sites."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qbpass.reports.groups import Group
from qbpass.reports.plain import plain, visible

if TYPE_CHECKING:
    from qbpass.admission.report import Diagnostic

MESSAGE, VALUE, LINES, OTHERS, FINDINGS = 600, 160, 12, 200, 20  # characters, and entries of a list


@dataclass(frozen=True)
class Finding:
    """One group's reason: the first site's in full, the others' messages."""

    label: str
    message: str
    evidence: Sequence[tuple[str, Sequence[str]]]  # what it is, its lines
    others: Sequence[tuple[str, str]] = ()  # site, message
    others_left_out: int = 0


@dataclass(frozen=True)
class Refusal:
    """A code. meaning: heading -> text, from the check's docstring; empty where the code is not a check's."""

    code: str
    meaning: Mapping[str, str]
    findings: Sequence[Finding]
    left_out: int = 0


def refusals(groups: Sequence[Group]) -> list[Refusal]:
    """Codes in the order in which they turn up."""
    found: dict[str, list[tuple[Group, Diagnostic]]] = {}
    for group in groups:
        for diagnostic in group.first.diagnostics:
            found.setdefault(diagnostic.code, []).append((group, diagnostic))
    return [_refusal(code, [_finding(*one) for one in some[:FINDINGS]], len(some)) for code, some in found.items()]


def of_graph(diagnostics: Iterable[Diagnostic]) -> list[Refusal]:
    """Diagnostics of the whole graph, by code."""
    found: dict[str, list[Diagnostic]] = {}
    for diagnostic in diagnostics:
        found.setdefault(diagnostic.code, []).append(diagnostic)
    told = {
        code: [Finding("", visible(d.message, MESSAGE), evidence_lines(d.evidence)) for d in some[:FINDINGS]]
        for code, some in found.items()
    }
    return [_refusal(code, findings, len(found[code])) for code, findings in told.items()]


def evidence_lines(evidence: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Each entry as lines of text, every length bounded."""
    return [(visible(key.replace("_", " "), 60), _lines(plain(value))) for key, value in evidence.items()]


def _refusal(code: str, findings: list[Finding], all_findings: int) -> Refusal:
    return Refusal(code, _meaning(code), findings, all_findings - len(findings))


def _meaning(code: str) -> Mapping[str, str]:
    from qbpass.admission import checks
    from qbpass.admission.docs import read_docstring
    from qbpass.models.interface import PROBLEM_CODES

    if code in PROBLEM_CODES:
        return {"What it says": f"{_sentence(PROBLEM_CODES[code])}."}
    module = next((module for module in checks.ALL if code == module.CODE), None)
    return {} if module is None else {heading: _sentence(text) for heading, text in read_docstring(module).items()}


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _finding(group: Group, diagnostic: Diagnostic) -> Finding:
    others = [(s.name, d.message) for s in group.sites[1:] for d in s.diagnostics if d.code == diagnostic.code]
    return Finding(
        label=group.label if len(group.sites) == 1 else f"{group.label}, of which {visible(group.first.name, 80)}",
        message=visible(diagnostic.message, MESSAGE),
        evidence=evidence_lines(diagnostic.evidence),
        others=[(visible(name, 80), visible(message, MESSAGE)) for name, message in others[:OTHERS]],
        others_left_out=max(0, len(others) - OTHERS),
    )


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict) and value:
        lines = [f"{visible(key, VALUE)}: {_text(entry)}" for key, entry in list(value.items())[:LINES]]
    elif isinstance(value, list) and any(isinstance(entry, (str, list, dict)) for entry in value):
        lines = [_text(entry) for entry in value[:LINES]]
    else:
        return [_text(value)]
    more = len(value) - LINES
    return [*lines, f"and {more} more"] if more > 0 else lines


def _text(value: Any) -> str:
    if isinstance(value, str):
        return visible(value, VALUE) or "–"
    if value in ([], {}):
        return "none"
    if isinstance(value, list) and not any(isinstance(entry, (list, dict)) for entry in value):
        return visible(f"({', '.join('?' if entry is None else str(entry) for entry in value)})", VALUE)
    return visible(json.dumps(value, ensure_ascii=False), VALUE)
