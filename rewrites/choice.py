"""`--layout auto`: among the layouts of which no part is proven wrong here, the one whose calls cost least here.

Refusals and falsified forms come first: a layout that could not be shown wrong is a candidate, and only candidates are
timed. What was decided is kept in the cache folder under the recipe, which names graph, weights, processor, threads and
ONNX Runtime: the same question on the same machine has been answered.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from qbpass.models.cache import cache_folder
from qbpass.models.recipe import Recipe
from qbpass.rewrites.plan import AnyLayout, RewritePlan
from qbpass.rewrites.refused import RewriteRefused

#: In the order in which equal costs are decided.
LAYOUTS: tuple[AnyLayout, ...] = ("qb", "pq", "gs")

#: Two ratios this close are no difference: the earlier layout is taken.
INDIFFERENCE = 0.02

#: A plan's complete verification call over the native call of as many rows, and GS's: layout -> ratio of medians.
Measure = Callable[[RewritePlan], Mapping[AnyLayout, float]]
Plan = Callable[[AnyLayout], RewritePlan]


class Candidate(BaseModel):
    """ratio: its call's time over the native call's; None where it was not timed. refusal: why it is none, with the
    trials that say so.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layout: Literal["qb", "pq", "gs"]
    ratio: float | None = None
    refusal: str | None = None
    trials: tuple[dict[str, Any], ...] = ()


class Choice(BaseModel):
    """What was decided, and why. remembered: by an earlier run under the same recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layout: Literal["qb", "pq", "gs"]
    candidates: tuple[Candidate, ...]
    remembered: bool = False

    def lines(self) -> list[str]:
        """The reasons, for people: one line a candidate, the chosen one first."""
        before = " (decided before, under the same recipe)" if self.remembered else ""
        order = sorted(self.candidates, key=lambda entry: entry.layout != self.layout)
        lines = [f"auto: {self.layout}{before}: {_words(order[0])}"]
        return lines + [f"  {entry.layout}: {_words(entry)}" for entry in order[1:]]


def _words(entry: Candidate) -> str:
    if entry.refusal is not None:
        return entry.refusal
    if entry.ratio is None:
        return "not proven wrong here; not timed, since there is no other choice"
    return f"not proven wrong here; a full call takes {entry.ratio:.2f} of the native call's time"


@dataclass(frozen=True)
class Chosen:
    plan: RewritePlan
    choice: Choice


def choose(plan: Plan, measure: Measure | None, memory: Path | None, *, fresh: bool = False) -> Chosen:
    """plan: makes a layout's plan, or raises RewriteRefused. measure: None where nothing can be run.

    memory: the file of an earlier decision (`decision_file`); not read where `fresh`. GS, which runs any decoder's rows
    alone, wins where it is the cheapest; where it is all that is left, the refusals of the others are raised: the user
    decides.
    """
    remembered = None if fresh else _read(memory)
    if remembered is not None:
        try:
            return Chosen(plan(remembered.layout), remembered)
        except RewriteRefused:
            pass  # the file was not this qbpass's, or a trial has found what the earlier ones did not
    plans: dict[AnyLayout, RewritePlan] = {}
    refusals: dict[AnyLayout, RewriteRefused] = {}
    for layout in LAYOUTS:
        try:
            plans[layout] = plan(layout)
        except RewriteRefused as refused:
            refusals[layout] = refused
    if not set(plans) - {"gs"}:
        raise _together({layout: refused for layout, refused in refusals.items() if layout != "gs"})
    ratios = _ratios(list(plans.values()), measure)
    layout = _cheapest(list(plans), ratios)
    candidates = tuple(
        Candidate(layout=name, refusal=str(refusals[name]), trials=refusals[name].trials)
        if name in refusals
        else Candidate(layout=name, ratio=ratios.get(name))
        for name in LAYOUTS
    )
    choice = Choice(layout=layout, candidates=candidates)
    _write(memory, choice)
    return Chosen(plans[layout], choice)


def _together(refusals: Mapping[AnyLayout, RewriteRefused]) -> RewriteRefused:
    """One refusal for all: what is said of the model is said once, what is said of layouts under their names."""
    said = {str(refused): layout for layout, refused in refusals.items()}
    if len(said) == 1:
        return next(iter(refusals.values()))
    return RewriteRefused(
        "; ".join(f"{layout}: {refused}" for layout, refused in refusals.items()),
        [trial for refused in refusals.values() for trial in refused.trials],
        next((refused.report for refused in refusals.values() if refused.report is not None), None),
    )


def _ratios(plans: Sequence[RewritePlan], measure: Measure | None) -> dict[AnyLayout, float]:
    """Nothing is timed where there is no choice. GS needs no graph of its own: it is timed beside another layout."""
    timed = [plan for plan in plans if plan.layout != "gs"]
    if measure is None or len(plans) < 2:
        return {}
    found: dict[AnyLayout, float] = {}
    for plan in timed:
        for layout, ratio in measure(plan).items():
            found[layout] = min(ratio, found.get(layout, ratio))
    return found


def _cheapest(layouts: Sequence[AnyLayout], ratios: Mapping[AnyLayout, float]) -> AnyLayout:
    best = layouts[0]
    for layout in layouts[1:]:
        if best in ratios and layout in ratios and ratios[layout] < ratios[best] - INDIFFERENCE:
            best = layout
    return best


def decision_file(recipe: Recipe, asked: Mapping[str, Any]) -> Path:
    """Where a decision under this recipe and these wishes (width, phases, ...) is kept."""
    key = {"recipe": recipe.model_dump(mode="json"), "asked": dict(asked), "qbpass": version("qbpass")}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
    return cache_folder() / "choices" / f"{digest}.json"


def _read(path: Path | None) -> Choice | None:
    """None where there is none that can be read: it is made again."""
    if path is None or not path.is_file() or path.stat().st_size > 1 << 20:
        return None
    try:
        return Choice.model_validate_json(path.read_bytes()).model_copy(update={"remembered": True})
    except (OSError, ValidationError):
        return None


def _write(path: Path | None, choice: Choice) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_suffix(".new")
        staged.write_text(choice.model_dump_json(indent=1), encoding="utf-8")
        staged.replace(path)
