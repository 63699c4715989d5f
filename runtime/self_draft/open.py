"""`--draft self`: the bundle's own weights, in the quantization that drafts best here."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.self_draft.graph import one_row_graph
from qbpass.rewrites.self_draft.quantize import QuantForm
from qbpass.rewrites.self_draft.store import DraftError, open_draft, stored_draft
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.open_target import BundleTarget
from qbpass.runtime.self_draft.calibrate import call_costs, continuations, step_cost, survival
from qbpass.runtime.self_draft.choice import (
    FORMS,
    DraftChoice,
    choice_file,
    choose_form,
    remember,
    remembered_choice,
)
from qbpass.runtime.self_draft.drafter import SelfDrafter

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class SelfDraft:
    """folder: where the draft's files lie. choice: why this one."""

    drafter: SelfDrafter
    folder: Path
    choice: DraftChoice


def open_self_draft(
    bundle: Bundle,
    target: BundleTarget,
    spec: SessionSpec,
    *,
    fresh: bool = False,
    progress: Progress = lambda text, done, total: None,
) -> SelfDraft:
    """A drafter over `target`'s own cache. What was decided and made before is used again, unless `fresh`.

    spec: of the draft's session, the target's own threads. Nothing may run on `target` meanwhile. Raises DraftError
    for a bundle that can't draft for itself.
    """
    if not isinstance(target, BlockTarget):
        raise not_shared(bundle)
    if spec.provider != "cpu":
        raise DraftError(f"a self draft runs on the CPU provider, not on {spec.provider}: use --draft ngram")
    memory = choice_file(bundle.manifest.recipe, target.max_queries, bundle.manifest.layout)
    choice = None if fresh else remembered_choice(memory)
    if choice is None:
        choice = _measured(bundle, target, spec, fresh, progress)
        remember(memory, choice)
    form = choice.chosen.form()
    folder = stored_draft(bundle, form, progress=progress)
    return SelfDraft(drafter_of(bundle, target, form, folder, spec), folder, choice)


def not_shared(bundle: Bundle) -> DraftError:
    return DraftError(
        f"rows of {bundle.folder} run one at a time have no cache to share with a draft: use --draft ngram"
    )


def drafter_of(bundle: Bundle, target: BlockTarget, form: QuantForm, folder: Path, spec: SessionSpec) -> SelfDrafter:
    """Over a stored draft of that form."""
    return SelfDrafter(open_draft(bundle, folder, spec), target, form.head_tokens)


def _measured(bundle: Bundle, target: BlockTarget, spec: SessionSpec, fresh: bool, progress: Progress) -> DraftChoice:
    progress("self draft: listening to the target", 0, 1)
    said = continuations(bundle, target)
    proposals = target.max_queries - 1
    usable = [each for each in said if len(each.tokens) > proposals]
    if proposals < 1 or not usable:
        raise DraftError(f"{bundle.folder} has no room to draft in: rewrite the model with a larger --max-queries")
    graph = one_row_graph(bundle.reference, frozenset(chain.layer for chain in bundle.manifest.chains))
    calls = call_costs(target, usable[0])

    folders: dict[QuantForm, Path] = {}

    def drafter(form: QuantForm) -> SelfDrafter:
        folders[form] = stored_draft(bundle, form, fresh=fresh and form not in folders, graph=graph, progress=progress)
        return drafter_of(bundle, target, form, folders[form], spec)

    def step(form: QuantForm) -> float:
        made = drafter(form)
        progress(f"self draft: timing {form.name}", 0, 1)
        return step_cost(made, usable[0])

    def right(form: QuantForm) -> list[float]:
        progress(f"self draft: how far {form.name} is right", 0, 1)
        return survival(drafter(form), usable, proposals)

    choice = choose_form(FORMS, calls, step, right)
    for form, folder in folders.items():
        if form != choice.chosen.form():
            shutil.rmtree(folder, ignore_errors=True)
    return choice
