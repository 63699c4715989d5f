"""Asks a backend's rules about every descriptor: false with its evidence, or unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qbpass.admission.backends.answers import Answer, FalseAnswer, Refutation, SupportReport
from qbpass.admission.backends.descriptor import Descriptor
from qbpass.admission.backends.errors import SupportError
from qbpass.admission.backends.rule import Backend, SupportRule, Target


def ask(
    backend: Backend,
    descriptors: Iterable[Descriptor],
    target: Target,
    *,
    notes: Sequence[str] = (),
    details: Mapping[str, Any] | None = None,
) -> SupportReport:
    """Every descriptor's answer. A rule is asked only where the target's version lies in its range.

    Raises SupportError where an installed rule raises or returns something that is no answer.
    """
    asked = [rule for rule in backend.rules if speaks_for(rule, target)]
    known: dict[Descriptor, tuple[Refutation, ...]] = {}
    answers = []
    for descriptor in descriptors:
        alike = replace(descriptor, site=None, nodes=1, example="")  # sites of one kind share their answers
        if alike not in known:
            known[alike] = tuple(r for rule in asked if (r := _refutation(rule, alike, target)) is not None)
        answers.append(Answer(descriptor, known[alike]))
    return SupportReport(
        backend=backend.name,
        project=backend.project,
        version=target.version,
        answers=tuple(answers),
        asked=tuple((rule.name, _versions(rule, target)) for rule in asked),
        not_asked=tuple((rule.name, _versions(rule, target)) for rule in backend.rules if rule not in asked),
        notes=tuple(notes),
        details=details or {},
    )


def speaks_for(rule: SupportRule, target: Target) -> bool:
    """Whether the rule was read in the target's version, or reads the target's own kernel table."""
    if rule.versions is None:
        return target.kernels is not None
    return target.version is not None and target.version in rule.versions


def _refutation(rule: SupportRule, descriptor: Descriptor, target: Target) -> Refutation | None:
    try:
        answer = rule.check(descriptor, target)
    except Exception as error:  # rules come from strangers, too: one line that names the rule
        told = " ".join(str(error).split())[:160]
        raise SupportError(
            f"the rule {rule.name} failed on {descriptor.label} ({type(error).__name__}: {told}): report it to its "
            "author"
        ) from error
    if answer is None:
        return None
    if not isinstance(answer, FalseAnswer):
        raise SupportError(
            f"the rule {rule.name} answered {descriptor.label} with {type(answer).__name__}: a rule returns a "
            "FalseAnswer or None; report it to its author"
        )
    return Refutation(rule.name, _versions(rule, target), answer, tuple(str(source) for source in rule.sources))


def _versions(rule: SupportRule, target: Target) -> str:
    """The releases the rule speaks for; a rule that reads a kernel table speaks for the table's."""
    if rule.versions is not None:
        return str(rule.versions)
    return "none given" if target.kernels is None else target.kernels.version or f"those of {target.kernels.source}"
