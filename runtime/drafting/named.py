"""Drafters that need nothing but tokens, and policies, by the names that options give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qbpass.runtime.drafter import Drafter, NoDrafter
from qbpass.runtime.drafting.adaptive import AdaptivePolicy
from qbpass.runtime.drafting.ngram import NgramDrafter
from qbpass.runtime.drafting.suffix import SuffixDrafter
from qbpass.runtime.policy import DraftingPolicy, FixedPolicy

LOOKED_UP: Mapping[str, Callable[[], Drafter]] = {
    "none": NoDrafter,
    "ngram": NgramDrafter,
    "suffix": SuffixDrafter,
}

#: Of a target of so many rows a call.
POLICIES: Mapping[str, Callable[[int], DraftingPolicy]] = {
    "adaptive": AdaptivePolicy,
    "fixed": lambda max_queries: FixedPolicy(),
}
