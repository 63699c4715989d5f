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


def layout_active(phase: Phase, mask: int) -> bool:
    """Whether the layout is active in `phase` under `mask`."""
    return bool(phase & mask)


def guard_table(mask: int) -> list[bool]:
    """Entry p: whether the layout is active when the graph's phase input is p. Baked into a guarded graph.

    Only the four single bits are phases; every other entry is False, so a phase nobody set selects the native layout.
    """
    phases = {int(phase) for phase in Phase}
    return [value in phases and bool(value & mask) for value in range(ALL_PHASES + 1)]
