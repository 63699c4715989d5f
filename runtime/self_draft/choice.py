"""Which quantization of the target drafts best on this machine: measured, decided once, and remembered.

Of each form two things are measured: what a proposal costs, and how far a proposal is right. Both, with the cost of the
target's calls, give the tokens a second of a whole round for every number of proposals; the form whose best number wins
is taken. Decisions lie in the cache folder, under the recipe: another machine, thread count or model is asked anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qbpass.models.cache import cache_folder
from qbpass.models.recipe import Recipe
from qbpass.rewrites.self_draft.quantize import QuantForm

#: In the order in which equal rates are decided: what is likeliest to be right comes first.
FORMS = (
    QuantForm(8, 8, block=32),
    QuantForm(8, 8, block=64),
    QuantForm(4, 8, block=32),
    QuantForm(4, 4, block=32),
)

MAX_BYTES = 1 << 20
Count = Annotated[int, Field(ge=1, le=1 << 31)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Form(_Frozen):
    """QuantForm, as it is written."""

    bits: Literal[4, 8]
    head_bits: Literal[4, 8]
    head_tokens: Count | None
    block: Literal[16, 32, 64, 128, 256]

    def form(self) -> QuantForm:
        return QuantForm(self.bits, self.head_bits, self.head_tokens, self.block)

    @classmethod
    def of(cls, form: QuantForm) -> Form:
        return cls.model_validate(vars(form))


class Candidate(_Frozen):
    """step: a proposal's cost over the target's call of one row. survival[i]: share of rounds in which the first i + 1
    proposals were right; () where the form was left out, since it could not win if all its proposals were.
    proposals: the number of them a round that pays most; ratio: its tokens a second over those without a draft.
    """

    form: Form
    step: float = Field(gt=0)
    survival: tuple[float, ...]
    proposals: int = Field(ge=0, le=64)
    ratio: float = Field(ge=0)


class DraftChoice(_Frozen):
    """calls[q - 1]: the target's call of q rows over that of one."""

    chosen: Form
    proposals: int = Field(ge=0, le=64)
    calls: tuple[float, ...]
    candidates: tuple[Candidate, ...]
    remembered: bool = False

    def lines(self) -> list[str]:
        """The reasons, for people: one line a form, the chosen one first."""
        order = sorted(self.candidates, key=lambda entry: entry.form != self.chosen)
        before = " (decided before, under the same recipe)" if self.remembered else ""
        return [f"self draft{before}: {_words(order[0])}", *(f"  {_words(entry)}" for entry in order[1:])]


def _words(entry: Candidate) -> str:
    name = f"{entry.form.form().name}, block {entry.form.block}"
    if not entry.survival:
        return f"{name}: a proposal costs {entry.step:.2f} of a call: too much, however right"
    return (
        f"{name}: a proposal costs {entry.step:.2f} of a call, the first is right in {entry.survival[0]:.0%}; "
        f"{entry.proposals} a round: {entry.ratio:.2f} times serial"
    )


def best_round(step: float, survival: Sequence[float], calls: Sequence[float]) -> tuple[int, float]:
    """(proposals a round, tokens a second over one call a token). Zero proposals are 1.0 by definition."""
    best, tokens = (0, 1.0), 1.0
    for proposals, right in enumerate(survival, 1):
        tokens += right
        ratio = tokens / (proposals * step + calls[proposals])
        if ratio > best[1]:
            best = proposals, ratio
    return best


def choose_form(
    forms: Sequence[QuantForm],
    calls: Sequence[float],
    step: Callable[[QuantForm], float],
    survival: Callable[[QuantForm], Sequence[float]],
) -> DraftChoice:
    """Measure the forms' steps, then how far they are right, cheapest first; one that can't win any more is left out.

    calls[q - 1]: the target's call of q rows over one of one row.
    """
    steps = {form: step(form) for form in forms}
    candidates: dict[QuantForm, Candidate] = {}
    best = 0.0
    for form in sorted(forms, key=lambda each: (steps[each], forms.index(each))):
        _, most = best_round(steps[form], [1.0] * (len(calls) - 1), calls)
        rights: Sequence[float] = () if most <= best else survival(form)
        proposals, ratio = best_round(steps[form], rights, calls)
        best = max(best, ratio if rights else 0.0)
        candidates[form] = Candidate(
            form=Form.of(form), step=steps[form], survival=tuple(rights), proposals=proposals, ratio=ratio
        )
    listed = [candidates[form] for form in forms]
    chosen = max((entry for entry in listed if entry.survival), key=lambda entry: entry.ratio)
    return DraftChoice(chosen=chosen.form, proposals=chosen.proposals, calls=tuple(calls), candidates=tuple(listed))


def choice_file(recipe: Recipe, max_queries: int, layout: str) -> Path:
    """Where the decision under this recipe is kept."""
    key = {
        "recipe": recipe.model_dump(mode="json"),
        "max_queries": max_queries,
        "layout": layout,
        "forms": [vars(form) for form in FORMS],
        "qbpass": version("qbpass"),
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
    return cache_folder() / "choices" / f"draft-{digest}.json"


def remembered_choice(path: Path) -> DraftChoice | None:
    """None where there is none that can be read: it is made again."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        return DraftChoice.model_validate_json(path.read_bytes()).model_copy(update={"remembered": True})
    except (OSError, ValidationError):
        return None


def remember(path: Path, choice: DraftChoice) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_suffix(".new")
    staged.write_text(choice.model_dump_json(indent=1), encoding="utf-8")
    staged.replace(path)
