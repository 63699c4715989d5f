"""The only two answers there are. No value of any of these types says that something is supported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from qbpass.admission.backends.descriptor import Descriptor

Verdict = Literal["false", "unknown"]


@dataclass(frozen=True)
class FalseAnswer:
    """What a rule returns: why the backend does not do what a descriptor asks, and what shows it.

    evidence holds JSON values: a table's rows with their line numbers, a message of a release, a file and its lines.
    """

    reason: str
    evidence: Mapping[str, Any]


@dataclass(frozen=True)
class Refutation:
    """A false answer with the rule that gave it and the versions that rule is bound to."""

    rule: str
    versions: str
    answer: FalseAnswer
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """The answer to one descriptor: false where some rule refuted it, else unknown."""

    descriptor: Descriptor
    refutations: tuple[Refutation, ...] = ()

    @property
    def verdict(self) -> Verdict:
        return "false" if self.refutations else "unknown"


@dataclass(frozen=True)
class SupportReport:
    """Every answer of one backend to one graph.

    asked, not_asked: (rule, versions) of the backend's rules that speak for the target's version, and of the others.
    """

    backend: str
    project: str
    version: str | None
    answers: tuple[Answer, ...]
    asked: tuple[tuple[str, str], ...] = ()
    not_asked: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        return "false" if any(answer.refutations for answer in self.answers) else "unknown"
