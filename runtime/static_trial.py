"""A static target against serial decoding on random tokens, on both sides of a bucket's end: it can prove wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from qbpass.models.errors import ModelFileError
from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle, plan_for
from qbpass.rewrites.refused import RewriteRefused
from qbpass.rewrites.static_graph import static_graph
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.block_trial import ROWS, differing_row, rows_alone
from qbpass.runtime.buffers import GRANULE
from qbpass.runtime.serial_target import SerialTarget
from qbpass.runtime.static_target import StaticSessions, StaticTarget

#: Prompts of these lengths, with ROWS behind each: the last ones run from one bucket into the next.
PROMPTS = (5, 59, GRANULE - 5)


def static_trial(serial: SerialTarget, target: StaticTarget, seed: int = 0) -> dict[str, Any]:
    """{"verdict": "false" | "unknown", "rows", "prompts", "seed", "witness"}: rows of blocks of every width, each
    against the row alone. A witness is {"past", "queries", "row", "max_abs_difference"}, or None.
    """
    draw = np.random.default_rng(seed)
    prompts = [length for length in PROMPTS if length + ROWS <= (serial.context_length or length + ROWS)]
    rows, witness = 0, None
    for prompt in prompts:
        tokens = draw.integers(0, serial.vocab_size, prompt + ROWS).tolist()
        for each in (serial, target):
            each.start(prompt + ROWS)
            each.prefill(tokens[:prompt])
        behind = tokens[prompt:]
        found, witness = differing_row(target, behind, rows_alone(serial, behind), target.max_queries)
        rows += found
        if witness is not None:
            break
    verdict = "unknown" if witness is None else "false"
    return {"verdict": verdict, "rows": rows, "prompts": prompts, "seed": seed, "witness": witness}


def refuse_false(trial: dict[str, Any]) -> None:
    """Raises RewriteRefused for a static target that was proven wrong."""
    witness = trial["witness"]
    if witness is not None:
        raise RewriteRefused(
            f"keys bound by bucket are false on this machine: row {witness['row']} of {witness['queries']} at past "
            f"{witness['past']} differs by {witness['max_abs_difference']:.3g}: leave CUDA graphs off",
            [trial],
        )


def open_static(
    bundle: Bundle, spec: SessionSpec, target: BlockTarget | None = None
) -> tuple[StaticTarget, dict[str, Any]]:
    """The bundle's layout with static verification calls, and the trial it survived here.

    target: one of the bundle's that is open already. Raises RewriteRefused with the witness where the trial proved it
    wrong, or where the layout has no static graph, or none that loads; else what opening sessions raises.
    """
    layout = bundle.manifest.layout
    if layout == "gs":
        raise RewriteRefused("layout gs runs rows in a loop, which no CUDA graph captures", of_layout=True)
    plan = plan_for(bundle, layout, spec)
    try:
        sessions = StaticSessions.open(static_graph(bundle.reference, plan), spec, bundle.weights)
    except ModelFileError as error:
        raise RewriteRefused(f"the static graph of layout {layout} can't be loaded here ({error})") from error
    static = StaticTarget(target or BlockTarget.from_bundle(bundle, spec), sessions, spec, plan.phase_mask)
    trial = static_trial(SerialTarget.from_bundle(bundle, spec), static)
    refuse_false(trial)
    return static, trial
