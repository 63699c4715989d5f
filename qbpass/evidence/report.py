"""The qualification report: what `qualify --json` writes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from qbpass.models.recipe import Recipe
from qbpass.runtime.drafting.drafts import DraftModel


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FirstDifference(_Frozen):
    prompt: str
    token: int  # index into the generated tokens


class FirstRowDifference(_Frozen):
    prompt: str
    past: int
    queries: int
    row: int
    max_abs_difference: float


class PromptRatio(_Frozen):
    prompt: str
    ratio_to_R: float


class ArmReport(_Frozen):
    """ratio_to_R is seconds(R) / seconds(arm) of all prompts together, geometric_mean that of each prompt's own, over
    all and by domain, worst_prompt the one with the lowest. All are None, or empty, where not all endpoints are equal:
    such an arm has no speed. mean_k: tokens verified a round; undrafted_rounds: the share that verified none.
    """

    endpoints: int
    equal: int
    first_difference: FirstDifference | None
    logit_rows: int
    logit_rows_equal: int
    first_row_difference: FirstRowDifference | None
    rows_by_width_and_alignment: dict[str, int]  # "q=3 n%4=2" -> rows
    seconds: float
    ratio_to_R: float | None
    geometric_mean: float | None
    worst_prompt: PromptRatio | None
    geometric_mean_by_domain: dict[str, float]
    tokens_per_round: float | None
    acceptance: float | None
    mean_k: float | None
    undrafted_rounds: float | None
    repaired: bool

    @property
    def exact(self) -> bool:
        return self.equal == self.endpoints and self.logit_rows_equal == self.logit_rows


class PromptReport(_Frozen):
    """first_difference and seconds by arm."""

    id: str
    domain: str
    prompt_tokens: int
    generated_tokens: int
    stop_reason: str
    first_difference: dict[str, int | None]
    seconds: dict[str, float]


class QualificationReport(_Frozen):
    schema_version: Literal[1] = 1
    recipe: Recipe
    draft: str
    draft_model: DraftModel | None = None
    policy: str
    k: int  # the most tokens proposed in a round
    max_new_tokens: int
    arms: dict[str, ArmReport]
    prompts: tuple[PromptReport, ...]

    @property
    def exact(self) -> bool:
        """Whether every repaired arm returned the reference, endpoints and rows alike."""
        return all(arm.exact for arm in self.arms.values() if arm.repaired)

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")
