"""What `qbpass support --json` writes, for its schema; admission/backends/document.py writes it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Verdict = Literal["false", "unknown"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class OperandModel(_Frozen):
    """An operand or a result; what is not known of it is not there."""

    name: str | None = None
    parameter: str | None = Field(default=None, description="The operator's type parameter at this place.")
    type: str | None = None
    shape: list[int | str | None] | None = None
    strides: list[int | None] | None = None


class DescriptorModel(_Frozen):
    """What the graph asks for: one distinct use of an operator."""

    operator: str
    domain: str
    opset: int | None
    since: int | None
    site: str | None
    part: str
    queries: int | None
    nodes: int
    example: str
    inputs: list[OperandModel | None]
    outputs: list[OperandModel | None]
    attributes: dict[str, Any]
    bodies: list[str]
    dynamic: bool


class AnswerModel(_Frozen):
    """One refutation, or a descriptor that no rule refutes: `rule` is null then. There is no third verdict."""

    site: str | None
    operator: str
    verdict: Verdict
    rule: str | None
    versions: str | None
    reason: str | None
    evidence: dict[str, Any]
    sources: list[str]
    descriptor: DescriptorModel


class RuleModel(_Frozen):
    rule: str
    versions: str


class SupportModel(BaseModel):
    """`qbpass support --json`. Beside these fields are those that say which graph was asked about."""

    model_config = ConfigDict(frozen=True, extra="allow")

    schema_version: Literal[1]
    backend: str
    project: str
    version: str | None
    verdict: Verdict
    notes: list[str]
    rules_asked: list[RuleModel]
    rules_not_asked: list[RuleModel]
    answers: list[AnswerModel]
