"""Mixtures of experts, written so that a graph can hold them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# transformers' name: each token's experts are gathered, whichever the router chose. The gathered weights grow with the
# number of rows: little for a block of a few tokens, much for a long prompt.
TRACEABLE = "batched_mm"


@contextmanager
def traceable_experts(model: Any) -> Iterator[None]:
    """Inside the block, `model` computes its experts without asking which of them were hit.

    transformers' own loop runs over the experts that were hit, and would be traced for the example's alone.
    """
    if not hasattr(model, "get_experts_implementation"):
        yield
        return
    before = model.get_experts_implementation()
    try:
        model.set_experts_implementation(TRACEABLE)
    except ValueError:  # a model without experts, or whose experts are written in one way only
        yield
        return
    try:
        yield
    finally:
        model.set_experts_implementation(before)
