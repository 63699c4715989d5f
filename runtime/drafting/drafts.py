"""Whoever `--draft` names, for the targets of one bundle: looked up, the target itself, or another model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.self_draft.store import draft_facts
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.drafter import Drafter
from qbpass.runtime.drafting.cascade import Cascade
from qbpass.runtime.drafting.model_draft import ModelDraft
from qbpass.runtime.drafting.named import LOOKED_UP
from qbpass.runtime.self_draft.drafter import SelfDrafter
from qbpass.runtime.self_draft.open import SelfDraft, not_shared, open_self_draft
from qbpass.runtime.target import Target

SELF = "self"

Progress = Callable[[str, int, int], None]


def parts_of(name: str) -> tuple[str | None, str]:
    """What is looked up first, if anything, and what else drafts: `suffix+self` is suffix and self."""
    first, plus, second = name.partition("+")
    return (first, second) if plus and first in LOOKED_UP and first != "none" and second else (None, name)


class DraftModel(BaseModel):
    """The model that drafted. source: `self`, or where it lies. form: a self draft's quantization. digest: SHA-256 of
    its weights, and of its graph where it is another model. threads: of its session.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    form: str | None
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    threads: int = Field(ge=1)


class Drafts:
    """Makes the drafters of one run. A model's session is opened once, and shared by all of them."""

    def __init__(
        self,
        name: str,
        bundle: Bundle,
        spec: SessionSpec,
        *,
        fresh: bool = False,
        progress: Progress = lambda text, done, total: None,
    ):
        """name: of LOOKED_UP, `self`, or the path of a bundle or an export; one of LOOKED_UP and `+` before the others
        is a cascade. fresh: decide anew what a self draft is.

        Raises what ModelDraft raises.
        """
        self.name, self._bundle, self._spec = name, bundle, spec
        self._fresh, self._progress = fresh, progress
        self._self: SelfDraft | None = None
        self._first, self._second = parts_of(name)
        known = self._second in LOOKED_UP or self._second == SELF
        self._model = None if known else ModelDraft(Path(self._second), bundle, spec)

    def drafter(self, target: Target) -> Drafter:
        """A drafter for `target`, on which nothing may run meanwhile. Raises DraftError where it can't have one."""
        second = self._drafter(target)
        return second if self._first is None else Cascade(LOOKED_UP[self._first](), second)

    def _drafter(self, target: Target) -> Drafter:
        if self._second in LOOKED_UP:
            return LOOKED_UP[self._second]()
        if self._model is not None:
            return self._model.drafter()
        if not isinstance(target, BlockTarget):
            raise not_shared(self._bundle)
        if self._self is None:
            self._self = open_self_draft(self._bundle, target, self._spec, fresh=self._fresh, progress=self._progress)
            return self._self.drafter
        return SelfDrafter(self._self.drafter.session, target, self._self.choice.chosen.head_tokens)

    @property
    def lines(self) -> list[str]:
        """Why the self draft is what it is, for people; nothing for others."""
        return [] if self._self is None else self._self.choice.lines()

    @property
    def model(self) -> DraftModel | None:
        """What a report tells of the draft model; None where there is none, or no drafter was made."""
        if self._model is not None:
            return DraftModel(source=self._second, form=None, digest=self._model.digest, threads=self._spec.threads)
        if self._self is None:
            return None
        return DraftModel(
            source=SELF,
            form=self._self.choice.chosen.form().name,
            digest=draft_facts(self._self.folder)["files"]["draft.data"],
            threads=self._spec.threads,
        )
