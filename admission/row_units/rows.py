"""Which axis of a tensor holds the call's token rows."""

from __future__ import annotations

from qbpass.admission.dataflow import Flow
from qbpass.admission.extents import QUERY_ROWS


class Unsplittable(Exception):
    """Nodes that can't be run a row at a time; the text is the reason. Never leaves this module's callers."""


def row_axis(flow: Flow, tensor: str) -> int | None:
    """The one axis whose length is the number of rows; None for a tensor that no row is part of.

    Raises Unsplittable where that can't be said: a shape that is not known, two such axes, or rows mixed with others.
    """
    extents = flow.extents(tensor)
    if extents is None or None in extents:
        raise Unsplittable(f"the shape of {tensor!r} is not known")
    axes = [axis for axis, extent in enumerate(extents) if extent == QUERY_ROWS]
    if len(axes) > 1:
        raise Unsplittable(f"{tensor!r} has {len(axes)} axes as long as the call has rows")
    if axes:
        return axes[0]
    if any(extent is not None and extent.value() is None for extent in extents):
        raise Unsplittable(f"no axis of {tensor!r} holds the rows alone")
    return None
