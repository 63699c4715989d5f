"""Sizes that the file fixes and that decoding outgrows."""

from __future__ import annotations

from collections.abc import Mapping

from qbpass.models.dataflow import Dataflow
from qbpass.models.findings import Findings


def check_sizes(flow: Dataflow, ids: str | None, growing: Mapping[str, int], findings: Findings) -> None:
    """FIXED_BATCH, FIXED_WIDTH and FIXED_PAST go to `findings`.

    growing: caches of rank 4 that rows are appended to -> the axis they are appended along.
    """
    for name in (*((ids,) if ids else ()), *sorted(growing)):
        batch = (flow.shape(name) or [None])[0]
        if isinstance(batch, int) and batch != 1 and growing.get(name) != 0:
            findings.add(
                "FIXED_BATCH",
                f"input {name!r} has a fixed batch of {batch}: export the model with a batch of 1 or a dynamic one",
                name,
            )
    width = (flow.shape(ids) or [None])[-1] if ids else None
    if isinstance(width, int) and ids:
        findings.add(
            "FIXED_WIDTH",
            f"input {ids!r} takes exactly {width} token(s) a call: export the model with a dynamic sequence length",
            ids,
        )
    for name, axis in sorted(growing.items()):
        past = (flow.shape(name) or [None] * 4)[axis]
        if isinstance(past, int):
            findings.add(
                "FIXED_PAST",
                f"input {name!r} has a fixed past of {past} positions: export the model with a dynamic past length",
                name,
            )
