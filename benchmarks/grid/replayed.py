"""One cell: a bundle is written, and replayed against the reference that its own recipe names."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from grid.outcome import Outcome
from qbpass.evidence.arms import Arm, build_arms
from qbpass.evidence.forced_replay import ReplayCount, replay, serial_rows
from qbpass.evidence.options import QualifyOptions
from qbpass.models.decoder import Decoder
from qbpass.models.errors import QbpassError
from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.planner import RewriteRefused
from qbpass.runtime.choosing import Chooser
from qbpass.runtime.drafter import Proposal
from qbpass.runtime.engine import Engine, Request


@dataclass(frozen=True)
class Size:
    """prompts: tokens of each; rows: replayed behind each; new_tokens: of each speculative request."""

    prompts: tuple[int, ...] = (9, 30)
    rows: int = 13
    new_tokens: int = 20
    max_queries: int = 4


def measured(decoder: Decoder, layout: Any, prefill: str, spec: SessionSpec, size: Size) -> Outcome:
    """The cell's ending. Nothing is raised: an exception that is no refusal is an ending, too, and a failure."""
    started = time.perf_counter()
    try:
        outcome = _measured(decoder, layout, prefill, spec, size)
    except RewriteRefused as refused:
        outcome = _refusal(refused)
    except QbpassError as error:
        outcome = Outcome("refused", str(error), codes_of(error))
    except Exception as error:  # of any library below: the grid says where
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {str(error)[:300]} ({Path(where.filename).name}:{where.lineno})"
        outcome = Outcome("error", " ".join(text.split()))
    return replace(outcome, seconds=round(time.perf_counter() - started, 3))


def _measured(decoder: Decoder, layout: Any, prefill: str, spec: SessionSpec, size: Size) -> Outcome:
    with tempfile.TemporaryDirectory() as scratch:
        bundle, _, _ = write_bundle(
            decoder, Path(scratch) / "bundle", layout, spec, max_queries=size.max_queries, prefill=prefill
        )
        chosen = bundle.manifest.layout
        try:
            arms = build_arms(bundle, QualifyOptions(arms=("R", "C_MQ", f"C_{chosen.upper()}")), spec)
            outcome = compared(bundle, arms, size)
        except QbpassError as error:  # what was written must run: this is no refusal
            outcome = Outcome("error", str(error))
        return replace(outcome, layout=chosen)


def compared(bundle: Bundle, arms: Sequence[Arm], size: Size) -> Outcome:
    """arms: the serial reference, plain speculation, the layout. Tokens are random and the same each time."""
    reference, native, repaired = arms
    counts = {arm.name: ReplayCount() for arm in (native, repaired)}
    endpoints, endpoints_equal, accepted, first = 0, 0, 0, ""
    for index, length in enumerate(size.prompts):
        random = np.random.default_rng(index)
        prompt, tokens = (
            tuple(int(t) for t in random.integers(0, bundle.manifest.interface.vocab_size, count))
            for count in (length, size.rows)
        )
        wanted = serial_rows(reference.target, prompt, tokens)
        if len({row.tobytes() for row in wanted}) == 1 or not np.isfinite(wanted).all():
            return Outcome(
                "error", f"prompt {index}: the reference's own rows are all one, or no numbers: they show nothing"
            )
        for arm in (native, repaired):
            replay(arm.target, f"prompt {index}", prompt, tokens, wanted, counts[arm.name])
        request = Request(prompt, size.new_tokens)
        serial, _ = reference.engine.generate(request)
        drafter = MisleadingDrafter(serial.token_ids, bundle.manifest.interface.vocab_size)
        endpoint, trace = Engine(repaired.target, drafter).generate(request)
        endpoints += 1
        endpoints_equal += endpoint == serial
        accepted += trace.accepted
        if endpoint != serial and not first:
            first = f"prompt {index}: the endpoint is {endpoint.token_ids}, not {serial.token_ids}"
    count = counts[repaired.name]
    if count.first is not None:
        seen = count.first
        first = (
            f"{seen.prompt}: row {seen.row + 1} of {seen.queries} behind {seen.past} positions differs by "
            f"{seen.max_abs_difference:.3g}"
        )
    return Outcome(
        "differs" if first else "equal",
        first,
        equal=dict(sorted(count.equal_by_width.items())),
        rows=dict(sorted(count.rows_by_width.items())),
        native_equal=dict(sorted(counts[native.name].equal_by_width.items())),
        endpoints=endpoints,
        endpoints_equal=endpoints_equal,
        accepted=accepted,
    )


class MisleadingDrafter:
    """Proposes the reference's own continuation with one token replaced, each time another one: blocks are accepted in
    part, and rows are rolled back.
    """

    def __init__(self, continuation: tuple[int, ...], vocab_size: int):
        self._continuation, self._vocab_size = continuation, vocab_size

    def start(self, tokens: Sequence[int], rows: int) -> None:
        self._seen = 0

    def extend(self, tokens: Sequence[int]) -> None:
        self._seen += len(tokens)

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        proposal = list(self._continuation[self._seen : self._seen + limit])
        wrong = self._seen % (limit + 1) if limit > 0 else 0
        if wrong < len(proposal):
            proposal[wrong] = (proposal[wrong] + 1) % self._vocab_size
        return Proposal(tuple(proposal))


def _refusal(refused: RewriteRefused) -> Outcome:
    codes = codes_of(refused)
    return Outcome("falsified" if refused.trials and not codes else "refused", str(refused), codes)


def codes_of(error: QbpassError) -> tuple[str, ...]:
    """Of the sites, of the graph, and of what an address audit found."""
    report, found = getattr(error, "report", None), list(getattr(error, "problems", ()))
    if report is not None:
        found += [diagnostic for site in report.sites for diagnostic in site.diagnostics]
        found += report.graph_diagnostics
    return tuple(sorted({diagnostic.code for diagnostic in found}))
