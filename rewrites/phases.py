"""The phases of a speculative transaction and the 4-bit mask that selects where a layout is active.

Source: Phase-Scoped Query Layouts, section 3.4 (target prefill, target continuation, draft prefill, draft
continuation).
"""

from __future__ import annotations

from enum import IntFlag


class Phase(IntFlag):
    """One bit a phase; a sum of bits is a mask."""

    TARGET_PREFILL = 1
    TARGET_CONTINUATION = 2
    DRAFT_PREFILL = 4
    DRAFT_CONTINUATION = 8


ALL_PHASES = 15
PREFILL_PHASES = int(Phase.TARGET_PREFILL | Phase.DRAFT_PREFILL)


def default_mask(prefill: str) -> int:
    """The target's phases in which a layout may stand for a reference of this recipe (Recipe.prefill)."""
    return int(Phase.TARGET_CONTINUATION | (Phase.TARGET_PREFILL if prefill == "one" else 0))


def mask_problem(mask: int, prefill: str) -> str | None:
    """Why a layout can't be active in the phases of `mask`: its rows are rows alone, the reference's are not. One line.

    prefill: the recipe's (Recipe.prefill).
    """
    if prefill == "one" or not mask & PREFILL_PHASES:
        return None
    fed = "the whole prompt" if prefill == "whole" else f"{prefill.removeprefix('chunks:')} prompt rows"
    return (
        f"phase mask {mask} rewrites prefill, and this reference prefills {fed} in one native call: leave 1 and 4 out "
        "of --phase-mask, or choose another reference with --prefill one"
    )


def layout_active(phase: Phase, mask: int) -> bool:
    """Whether the layout is active in `phase` under `mask`."""
    return bool(phase & mask)


def guard_table(mask: int) -> list[bool]:
    """Entry p: whether the layout is active when the graph's phase input is p. Baked into a guarded graph.

    Only the four single bits are phases; every other entry is False, so a phase nobody set selects the native layout.
    """
    phases = {int(phase) for phase in Phase}
    return [value in phases and bool(value & mask) for value in range(ALL_PHASES + 1)]
