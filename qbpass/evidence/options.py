"""What `qualify` is asked to run."""

from __future__ import annotations

from dataclasses import dataclass

from qbpass.models.errors import PromptError

ARMS = {
    "R": "the serial reference: the unmodified frozen graph, one token a call",
    "C_MQ": "speculation on the native graph: what others do",
    "C_QB": "speculation with queries as batch entries over shared K/V",
    "C_PQ": "speculation with one attention subgraph a query",
}


@dataclass(frozen=True)
class QualifyOptions:
    """replay_rows: serial rows of each prompt that the forced replay compares; 0 turns it off. repeats: timed runs."""

    arms: tuple[str, ...] = tuple(ARMS)
    draft: str = "ngram"
    k: int = 3
    max_new_tokens: int = 128
    replay_rows: int = 16
    repeats: int = 1

    def __post_init__(self) -> None:
        unknown = [arm for arm in self.arms if arm not in ARMS]
        if unknown:
            raise PromptError(f"this version has no arm {', '.join(unknown)}: choose among {', '.join(ARMS)}")
        if "R" not in self.arms:
            raise PromptError("arm R is the reference every other arm is compared with: add it to --arms")
        if len(set(self.arms)) != len(self.arms):
            raise PromptError("an arm is named twice in --arms")
        if self.draft not in ("ngram", "none"):
            raise PromptError(f"this version has no draft {self.draft!r}: choose ngram or none")
        if min(self.k, self.max_new_tokens, self.repeats) < 1 or self.replay_rows < 0:
            raise PromptError("-k, --max-new-tokens and --repeats must be at least 1, --replay-rows at least 0")
