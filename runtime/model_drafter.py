"""A model as drafter: greedy proposals, one row a call, over a KV cache of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qbpass.models.session import SessionSpec
from qbpass.rewrites.manifest import Manifest
from qbpass.runtime.choosing import Chooser
from qbpass.runtime.drafter import Proposal
from qbpass.runtime.open_target import BundleTarget
from qbpass.runtime.prefill import recipe_rows
from qbpass.runtime.target import Target, greedy


class ModelDrafter:
    """Reads the prompt, then proposes what the model would say next. What the target rejected is rolled back.

    A draft promises nothing: other bits of it give other proposals at worst, never another output. So it takes known
    rows together, whatever the layout of its phases; with the layout active in them its proposals are those of serial
    evaluation. `target` is a model in the draft's role that nobody else uses.
    """

    def __init__(self, target: Target):
        self.target = target
        self._tokens: list[int] = []  # prompt and committed tokens
        self._fed: list[int] = []  # what the cache holds, position by position
        self._agreed = 0  # so many of both are known to be the same
        self._rows = 0

    @classmethod
    def sharing(cls, target: BundleTarget, manifest: Manifest, spec: SessionSpec) -> ModelDrafter:
        """The bundle's own model, in the session that `target` runs it in."""
        one_by_one = manifest.recipe.prefill == "one"
        rows = manifest.max_queries if one_by_one else recipe_rows(manifest.recipe.prefill)
        return cls(target.draft(spec, rows))

    def start(self, tokens: Sequence[int], rows: int) -> None:
        self._tokens, self._fed, self._agreed, self._rows = list(tokens), [], 0, rows
        self.target.start(rows)
        self.target.prefill(tokens)
        self._fed = list(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        self._tokens.extend(tokens)

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        """The model's own greedy continuation, whatever the target's rule is; fewer than `limit` where the cache has no
        room. Raises what the model's calls raise, BadLogits among it.
        """
        del fork
        limit = min(limit, self._rows - len(self._tokens) + 1)
        if limit < 1:
            return Proposal()
        self._reconcile()
        width = self.target.max_queries
        proposal: list[int] = []
        while len(self._fed) < len(self._tokens):
            proposal = self._next(self._tokens[len(self._fed) : len(self._fed) + width])
        self._agreed = len(self._tokens)
        while len(proposal) < limit:
            proposal += self._next(proposal[-1:])
        return Proposal(tuple(proposal))

    def _reconcile(self) -> None:
        """Back to what cache and committed tokens share, and at least to the row before the last token: its logits are
        wanted.
        """
        most = min(len(self._fed), len(self._tokens) - 1)
        same = min(self._agreed, most)
        while same < most and self._fed[same] == self._tokens[same]:
            same += 1
        self.target.rollback(same)
        del self._fed[same:]
        self._agreed = same

    def _next(self, tokens: Sequence[int]) -> list[int]:
        """The model's next token behind these, as a list of one."""
        logits = self.target.verify(tokens)
        self._fed.extend(tokens)
        return greedy(logits[-1:])
