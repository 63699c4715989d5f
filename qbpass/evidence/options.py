"""What `qualify` is asked to run."""

from __future__ import annotations

from dataclasses import dataclass

from qbpass.models.errors import PromptError
from qbpass.rewrites.manifest import Manifest
from qbpass.runtime.drafting.named import POLICIES

LAYOUT_NAMES = {
    "MQ": "the native graph: what others do",
    "QB": "queries as batch entries over shared K/V",
    "PQ": "one attention subgraph a query",
    "GS": "the decoder's rows one at a time",
}

#: M: the target alone, rows together wherever they are known (the prompt, where the recipe reads one row a call).
#: C: speculation.
ARMS = {
    "R": "the serial reference: the unmodified frozen graph, one token a call",
    **{f"M_{name}": f"no speculation, {what}" for name, what in LAYOUT_NAMES.items()},
    **{f"C_{name}": f"speculation, {what}" for name, what in LAYOUT_NAMES.items()},
}

#: Layouts whose rows are promised to be the reference's.
REPAIRED = ("QB", "PQ", "GS")

DEFAULT_ARMS = ("R", "C_MQ", "C_QB", "C_PQ")


def default_arms(manifest: Manifest) -> tuple[str, ...]:
    """Those that a bundle's own plan says can be run."""
    if manifest.layout == "gs":
        return ("R", "C_MQ", "C_GS")
    return ("R", "C_MQ", "C_PQ") if manifest.chains else DEFAULT_ARMS


@dataclass(frozen=True)
class QualifyOptions:
    """k: the most tokens proposed in a round; None: what the target's width allows. policy: how many of them are.

    replay_rows: serial rows of each prompt that the forced replay compares; 0 turns it off. repeats: timed runs.
    draft: as `--draft` has it (runtime/drafting/drafts.py); fresh_draft: decide anew what a self draft is.
    lean: rows alone by the rewritten graph, too (runtime/row_calls.py).
    """

    arms: tuple[str, ...] = DEFAULT_ARMS
    draft: str = "ngram"
    k: int | None = None
    policy: str = "adaptive"
    max_new_tokens: int = 128
    replay_rows: int = 16
    repeats: int = 1
    lean: bool = False
    fresh_draft: bool = False

    def __post_init__(self) -> None:
        unknown = [arm for arm in self.arms if arm not in ARMS]
        if unknown:
            raise PromptError(f"this version has no arm {', '.join(unknown)}: choose among {', '.join(ARMS)}")
        if "R" not in self.arms:
            raise PromptError("arm R is the reference every other arm is compared with: add it to --arms")
        if len(set(self.arms)) != len(self.arms):
            raise PromptError("an arm is named twice in --arms")
        if self.policy not in POLICIES:
            raise PromptError(f"this version has no policy {self.policy!r}: choose one of {', '.join(POLICIES)}")
        if min(1 if self.k is None else self.k, self.max_new_tokens, self.repeats) < 1 or self.replay_rows < 0:
            raise PromptError("-k, --max-new-tokens and --repeats must be at least 1, --replay-rows at least 0")
