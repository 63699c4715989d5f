"""What `qbpass probe` says: every answer, what was left out, where nodes ran, what calls cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from onnx import helper
from pydantic import BaseModel, ConfigDict

from qbpass.admission.probes.case import Case
from qbpass.admission.probes.collect import LeftOut
from qbpass.admission.probes.curve import Curve
from qbpass.admission.probes.falsify import Answer, Verdict


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProbedCase(_Frozen):
    """One probe's answer of one kind of node. shapes: q stands for rows, n for keys, * for a constant."""

    graph: str
    operator: str
    domain: str
    attributes: dict[str, Any]
    dtypes: tuple[str, ...]
    shapes: dict[str, tuple[str, ...]]
    provider: str
    ran_on: dict[str, tuple[str, ...]]  # provider -> operators, as the case's own session recorded it
    threads: int
    count: int  # nodes of this kind in the graph
    where: str  # the first one's output
    probe: str
    question: str
    verdict: Verdict
    trials: int
    differing: int
    refused: int
    reason: str | None
    witness: str | None
    detail: dict[str, Any]
    cached: bool


class LeftOutKind(_Frozen):
    graph: str
    operator: str
    domain: str
    reason: str
    count: int


class ProbeReport(_Frozen):
    """recipe: the model's; for builtin operators the fields of one that are the process's."""

    schema_version: Literal[1] = 1
    model: str
    recipe: dict[str, Any]
    queries: int
    cases: tuple[ProbedCase, ...]
    left_out: tuple[LeftOutKind, ...]
    placement: dict[str, Any] | None
    curves: tuple[Curve, ...]

    @property
    def falsified(self) -> tuple[ProbedCase, ...]:
        return tuple(case for case in self.cases if case.verdict == "false")


def probed_case(answer: Answer, provider: str, threads: int) -> ProbedCase:
    case, record = answer.case, answer.record
    return ProbedCase(
        graph=case.graph,
        operator=case.operator,
        domain=case.domain,
        attributes=_attributes(case),
        **case.describe(),
        provider=provider,
        ran_on=record.ran_on,
        threads=threads,
        count=case.count,
        where=case.where,
        probe=answer.probe.name,
        question=answer.probe.question,
        verdict=record.verdict,
        trials=record.trials,
        differing=record.differing,
        refused=record.refused,
        reason=record.reason,
        witness=None if answer.witness is None else str(answer.witness),
        detail=record.detail,
        cached=answer.cached,
    )


def left_out_kinds(graph: str, kinds: Iterable[LeftOut]) -> list[LeftOutKind]:
    return [LeftOutKind(graph=graph, **vars(kind)) for kind in kinds]


def _attributes(case: Case) -> dict[str, Any]:
    """Of a single node: numbers, names and lists of them."""
    if len(case.nodes) != 1:
        return {}
    found = {a.name: helper.get_attribute_value(a) for a in case.nodes[0].attribute}
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(entry) for entry in value]
    return value if isinstance(value, int | float | str) else type(value).__name__
