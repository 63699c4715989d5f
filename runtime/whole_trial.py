"""A rewritten decoder, whole, against the reference on random tokens: the last trial before a bundle appears.

Forms of a site are tried on the site alone. What an execution provider makes of a whole graph may differ from what it
makes of its parts (OpenVINO compiles another graph at once), and the differences show here at the latest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qbpass.models.errors import ModelFileError
from qbpass.models.session import SessionSpec
from qbpass.rewrites.phases import Phase, layout_active
from qbpass.rewrites.refused import RewriteRefused
from qbpass.rewrites.written import Tried, Written
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.block_trial import ROWS, differing_row, rows_alone
from qbpass.runtime.call_error import CallError
from qbpass.runtime.gs_target import GSTarget
from qbpass.runtime.layout_cost import call_ratios
from qbpass.runtime.placed_session import open_placed
from qbpass.runtime.prefill import prompt_rows
from qbpass.runtime.rewinding_target import RewindingTarget
from qbpass.runtime.target import greedy

#: Prompts of these lengths, with ROWS behind each: blocks lie on both sides of 64.
PROMPTS = (5, 59)


def whole_trial(written: Written, timed: bool, spec: SessionSpec, seed: int = 0) -> Tried:
    """Blocks of 1 .. max_queries rows behind prompts of random tokens, each row against the row alone, byte for byte.

    timed: what a full call costs, too. Opens the reference and the rewritten graphs. Raises RewriteRefused where the
    rewritten one can't be loaded or run, BadLogits where the reference's own logits are no numbers.
    """
    plan, frozen = written.plan, written.frozen
    shared = {chain.site.layer for chain in plan.chains} == {pair.layer for pair in frozen.contract.kv}
    reference = RewindingTarget.from_frozen(
        frozen, spec, max_queries=plan.max_queries, share_cache=shared, prefill=written.prefill
    )
    try:
        target = opened(written, spec)
        tried = _compare(written, reference, target, timed and not written.widths, seed)
        if written.widths and tried.evidence["verdict"] != "false":
            del target  # the guarded graph runs every width where less memory is asked for, and no width elsewhere
            tried = _compare(written, reference, opened(written, spec, by_width=True), timed, seed)
        return tried
    except (ModelFileError, CallError) as error:
        raise RewriteRefused(f"layout {plan.layout} can't be run here ({error})", of_layout=True) from error


def _compare(
    written: Written, reference: RewindingTarget, target: BlockTarget | GSTarget, timed: bool, seed: int
) -> Tried:
    plan, frozen = written.plan, written.frozen
    draw = np.random.default_rng(seed)
    rows, longest = 0, frozen.context_length or 1 << 30
    for prompt in (length for length in PROMPTS if length + ROWS <= longest):
        tokens = draw.integers(0, frozen.contract.vocab_size, prompt + ROWS).tolist()
        for each in (reference, target):
            each.start(prompt + ROWS)
        first = reference.prefill(tokens[:prompt])
        greedy(first)  # raises where they are no numbers
        if first.tobytes() != target.prefill(tokens[:prompt]).tobytes():
            return Tried(_false(rows, {"prompt_tokens": prompt, "queries": prompt, "row": prompt - 1, "seed": seed}))
        behind = tokens[prompt:]
        found, witness = differing_row(target, behind, rows_alone(reference, behind), plan.max_queries)
        rows += found
        if witness is not None:
            return Tried(_false(rows, {**witness, "seed": seed}))
    evidence = {"verdict": "unknown", "rows": rows, "prompts": list(PROMPTS), "seed": seed}
    return Tried(evidence, call_ratios(reference, target, plan) if timed and isinstance(target, BlockTarget) else {})


def _false(rows: int, witness: dict[str, Any]) -> dict[str, Any]:
    return {"verdict": "false", "rows": rows, "witness": witness}


def opened(written: Written, spec: SessionSpec, *, by_width: bool = False) -> BlockTarget | GSTarget:
    """The target that a bundle of these graphs is run by. by_width: with a session for each number of rows."""
    plan, frozen = written.plan, written.frozen
    straight = "active" in written.models
    sessions = {
        emission: open_placed(model.SerializeToString(), spec, weights=frozen.weights)
        for emission, model in written.models.items()
    }
    active = layout_active(Phase.TARGET_PREFILL, plan.phase_mask)
    prefill_rows = prompt_rows(written.prefill, active=active, max_queries=plan.max_queries)
    session, native = sessions["active" if straight else "guarded"], sessions.get("native")
    if plan.layout == "gs":
        return GSTarget(
            session,
            frozen.contract,
            spec,
            context_length=frozen.context_length,
            max_queries=plan.max_queries,
            native_session=native,
            phase_mask=plan.phase_mask,
            prefill_rows=prefill_rows,
        )
    widths = {
        rows: open_placed(model.SerializeToString(), spec, weights=frozen.weights)
        for rows, model in (written.widths.items() if by_width else ())
    }
    return BlockTarget.of_plan(
        session, frozen, plan, spec, native_session=native, prefill_rows=prefill_rows, by_width=widths
    )
