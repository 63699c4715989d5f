"""A model as drafter: its proposals, one row a call, over a KV cache of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from qbpass.models.session import SessionSpec
from qbpass.rewrites.manifest import Manifest
from qbpass.runtime.choosing import Chooser
from qbpass.runtime.drafter import Proposal
from qbpass.runtime.open_target import BundleTarget
from qbpass.runtime.prefill import recipe_rows
from qbpass.runtime.target import Target


class ModelDrafter:
    """Reads the prompt, then proposes what the model would say next. What the target rejected is rolled back.

    A draft promises nothing: other bits of it give other proposals at worst, never another output. So it takes known
    rows together, whatever the layout of its phases; with the layout active in them its proposals are those of serial
    evaluation. `target` is a model in the draft's role that nobody else uses. A token it does not know, or a row
    behind the end of its context, ends its proposals for the rest of the request.
    """

    def __init__(self, target: Target, vocab_size: int | None = None):
        """vocab_size: of the model it drafts for, whose logits may be padded otherwise; None where it is the same."""
        self.target = target
        self._tokens: list[int] = []  # prompt and committed tokens
        self._fed: list[int] = []  # what the cache holds, position by position
        self._agreed = 0  # so many of both are known to be the same
        self._rows = 0
        self._strange = False
        self._vocab_size = target.vocab_size if vocab_size is None else vocab_size
        self._padded_V: np.ndarray | None = None

    @classmethod
    def sharing(cls, target: BundleTarget, manifest: Manifest, spec: SessionSpec) -> ModelDrafter:
        """The bundle's own model, in the session that `target` runs it in."""
        one_by_one = manifest.recipe.prefill == "one"
        rows = manifest.max_queries if one_by_one else recipe_rows(manifest.recipe.prefill)
        return cls(target.draft(spec, rows))

    def start(self, tokens: Sequence[int], rows: int) -> None:
        context = self.target.context_length
        self._rows = rows if context is None else min(rows, context)
        self._tokens, self._fed, self._agreed, self._strange = list(tokens), [], 0, False
        self._meet(tokens)
        if self._strange or len(tokens) > self._rows:
            self._strange = True
            return
        self.target.start(self._rows)
        self.target.prefill(tokens)
        self._fed = list(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        self._tokens.extend(tokens)
        self._meet(tokens)

    def _meet(self, tokens: Sequence[int]) -> None:
        self._strange = self._strange or any(token >= self.target.vocab_size for token in tokens)

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        """The model's own continuation by the target's rule; fewer than `limit` where the cache has no room, or a token
        is none of the model's. Raises what the model's calls raise, BadLogits among it.
        """
        limit = min(limit, self._rows - len(self._tokens) + 1)
        if limit < 1 or self._strange:
            return Proposal()
        self._reconcile()
        width = self.target.max_queries
        while len(self._fed) < len(self._tokens):
            logits_V = self._next(self._tokens[len(self._fed) : len(self._fed) + width])
        self._agreed = len(self._tokens)
        chooser = fork()
        proposal = [chooser.choose(logits_V)]
        while len(proposal) < limit and proposal[-1] < self.target.vocab_size:
            chooser.advance(proposal[-1])
            proposal.append(chooser.choose(self._next(proposal[-1:])))
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

    def _next(self, tokens: Sequence[int]) -> np.ndarray:
        """The model's logits behind these tokens, as wide as those of the model it drafts for: (vocabulary,)."""
        logits_V: np.ndarray = self.target.verify(tokens)[-1]
        self._fed.extend(tokens)
        if len(logits_V) >= self._vocab_size:
            return logits_V[: self._vocab_size]
        if self._padded_V is None:
            self._padded_V = np.full(self._vocab_size, -np.inf, logits_V.dtype)
        self._padded_V[: len(logits_V)] = logits_V
        return self._padded_V
