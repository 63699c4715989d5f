"""How a prompt is cut into calls: as the reference's recipe says, or wider where a layout is active in prefill.

Rows evaluated together and rows evaluated alone differ in their bits, so the cut is part of the reference's identity
(Recipe.prefill): the same prompt in other calls is another reference.
"""

from __future__ import annotations

from collections.abc import Sequence

from qbpass.rewrites.manifest import Manifest
from qbpass.rewrites.phases import Phase, layout_active


def recipe_rows(prefill: str) -> int | None:
    """Rows of the prompt that the reference evaluates in one call, by its recipe. None: the whole prompt."""
    if prefill == "whole":
        return None
    return 1 if prefill == "one" else int(prefill.removeprefix("chunks:"))


def prompt_rows(prefill: str, *, active: bool, max_queries: int) -> int | None:
    """The same for a rewritten decoder. active: whether its layout is, in this prefill.

    A layout gives every row the bits of that row alone, so it may stand for a reference that reads its prompt one row a
    call, and for no other. Where it is not active, the calls are the reference's own.
    """
    return max_queries if active and prefill == "one" else recipe_rows(prefill)


def target_prompt_rows(manifest: Manifest) -> int | None:
    """Rows of the prompt that a bundle's target evaluates in one call."""
    active = layout_active(Phase.TARGET_PREFILL, manifest.phase_mask)
    return prompt_rows(manifest.recipe.prefill, active=active, max_queries=manifest.max_queries)


def calls(tokens: Sequence[int], rows: int | None) -> list[Sequence[int]]:
    """The prompt in calls of `rows` tokens, the last possibly shorter. None: one call."""
    if rows is None:
        return [tokens]
    return [tokens[start : start + rows] for start in range(0, len(tokens), rows)]
