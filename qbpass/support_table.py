"""A support report for people: what is refuted, a row for each thing and rule, then what was not asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qbpass.screen import say, table

if TYPE_CHECKING:
    from qbpass.admission.backends.answers import Answer, Refutation, SupportReport
    from qbpass.admission.backends.registry import Known
    from qbpass.admission.backends.rule import Backend

COLUMNS = [("operator", False), ("where", False), ("verdict", False), ("rule", False), ("versions", False)]
LONGEST = 200  # characters of a piece of evidence on a terminal; --json has all of them


def show_backends(known: Known) -> None:
    """Every backend with the number of its rules and the versions they speak for."""
    rows = []
    for backend in known.backends:
        ranges = dict.fromkeys(str(rule.versions) for rule in backend.rules if rule.versions is not None)
        spoken = ", ".join([*(["the kernel table's"] if _reads_kernels(backend) else []), *ranges])
        rows.append([backend.name, backend.title, str(len(backend.rules)), backend.project, _shown(spoken)])
    table([("backend", False), ("what it is", False), ("rules", True), ("versions of", False), ("", False)], rows)
    for line in known.broken:
        say(f"{line}: left out")


def show_support(report: SupportReport, backend: Backend, *, every: bool) -> None:
    """every: a row for each answer, unknown ones too; else equal refutations of several sites share a row."""
    groups = _grouped(report, every)
    if groups:
        table(COLUMNS, [group.cells() for group in groups])
    for group in groups:
        for line in group.lines():
            say(line)
    for line in report.notes:
        say(f"note: {_shown(line)}")
    if report.not_asked:
        left = ", ".join(f"{rule} ({versions})" for rule, versions in report.not_asked)
        say(f"not asked about {report.project} {report.version}: {left}")
    false = sum(answer.verdict == "false" for answer in report.answers)
    say(
        f"{backend.name}, {report.project} {report.version or 'of no known version'}: {report.verdict}; "
        f"{false} of {len(report.answers)} questions are refuted, {len(report.answers) - false} are unknown"
    )


@dataclass
class _Group:
    """Answers that one rule refuted for one reason (or one that nothing refuted), whatever they are about."""

    refutation: Refutation | None
    labels: dict[str, None] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)

    def add(self, answer: Answer) -> None:
        place = _place(answer)
        self.labels[_shown(answer.descriptor.label)] = None
        self.places[place] = self.places.get(place, 0) + answer.descriptor.nodes

    def cells(self) -> list[str]:
        if self.refutation is None:
            return [self._names(), self._where(), "unknown", "", ""]
        return [self._names(), self._where(), "false", _shown(self.refutation.rule), self.refutation.versions]

    def lines(self) -> list[str]:
        """The reason with every operator, then the evidence that is short enough to be read."""
        if self.refutation is None:
            return []
        answer = self.refutation.answer
        return [f"{', '.join(self.labels)}: {_shown(answer.reason)}", *map("    {}".format, _evidence(answer.evidence))]

    def _names(self) -> str:
        names = list(self.labels)
        return ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]} and {len(names) - 2} more"

    def _where(self) -> str:
        names = list(self.places)
        if len(names) <= 2:
            return _shown(", ".join(f"{name} ×{count}" if count > 1 else name for name, count in self.places.items()))
        return _shown(f"{names[0]} – {names[-1]} ({len(names)} places)")


def _grouped(report: SupportReport, every: bool) -> list[_Group]:
    groups: dict[tuple[Any, ...], _Group] = {}
    for answer in report.answers:
        for refutation in answer.refutations or ((None,) if every else ()):
            alike = (refutation and (refutation.rule, refutation.answer.reason),)
            key = (*alike, len(groups)) if every else alike
            groups.setdefault(key, _Group(refutation)).add(answer)
    return list(groups.values())


def _place(answer: Answer) -> str:
    descriptor = answer.descriptor
    where = descriptor.site or "graph"
    return f"{where} (QB, {descriptor.queries} rows)" if descriptor.part == "qb" and descriptor.site else where


def _evidence(evidence: Mapping[str, Any]) -> list[str]:
    """A table's rows with their line numbers, without the column of operands; a release's message."""
    rows = evidence.get("rows")
    lines = []
    for row in rows if isinstance(rows, list) else []:
        line = f":{row['line']}" if "line" in row else ""
        lines.append(_shown(f"{evidence.get('table')}{line}: {_without_operands(row)}", LONGEST))
    if "message" in evidence:
        lines.append(_shown(f"message: {evidence['message']}", LONGEST))
    return lines


def _without_operands(row: Mapping[str, Any]) -> str:
    cells = str(row.get("text", "")).split("|")
    if len(cells) != 6:
        return str(row.get("text", ""))
    return f"|{cells[1] or row.get('operator', '')}|…|{cells[3]}|{cells[4]}|"


def _reads_kernels(backend: Backend) -> bool:
    return any(rule.versions is None for rule in backend.rules)


def _shown(text: str, longest: int = 1000) -> str:
    """Names come from strangers' files: nothing that is not printable reaches a terminal."""
    seen = "".join(c if c.isprintable() else "�" for c in text)
    return seen if len(seen) <= longest else f"{seen[: longest - 1]}…"
