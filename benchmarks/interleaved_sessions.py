"""Two sessions that take turns, as a target and its draft do: does either pay for the other's waiting threads?

The frozen graphs of two bundles decode one token a call, each alone and then in turns. A session's worker threads spin
for a while when a run ends; here they stop at its end (session.force_spinning_stop, which every session of qbpass has),
and for comparison they go on. The tokens of both ways are compared.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from measuring.claims import Claim, show_claims
from measuring.script import parser, positive, run, spec_of

from qbpass.admission.probes.interleaved import Ratio
from qbpass.models.session import SessionSpec, open_session
from qbpass.rewrites.bundle import Bundle, check_recipe, open_bundle
from qbpass.runtime.serial_target import SerialTarget
from qbpass.runtime.target import greedy
from qbpass.screen import Steps, table

STOPPING = "session.force_spinning_stop"
WAYS = {"stopping": "1", "spinning": "0"}
MOST = 1.15  # a call in turns over the same call alone: its weights left the caches while the other ran


class Stream:
    """One model's greedy continuation of a random prompt, a token a call."""

    def __init__(self, bundle: Bundle, spec: SessionSpec, way: str, prompt: int, calls: int):
        reference = bundle.reference
        session = open_session(reference.path, spec, weights=reference.weights, entries={STOPPING: WAYS[way]})
        self.target = SerialTarget(
            session,
            reference.contract,
            spec,
            context_length=reference.context_length,
            share_cache=bundle.appends_in_place,
        )
        self.prompt = np.random.default_rng(0).integers(0, self.target.vocab_size, prompt).tolist()
        self.room = prompt + calls
        self.tokens: list[int] = []

    def start(self) -> None:
        self.target.start(self.room)
        self.tokens = greedy(self.target.prefill(self.prompt))

    def step(self) -> float:
        """Seconds of the next token's call."""
        begin = time.perf_counter()
        logits = self.target.verify(self.tokens[-1:])
        seconds = time.perf_counter() - begin
        self.tokens += greedy(logits)
        return seconds


def round_of(streams: list[Stream], calls: int) -> tuple[list[float], list[float]]:
    """Median seconds of a call of each stream: alone, and in turns."""
    alone = []
    for stream in streams:
        stream.start()
        alone.append(float(np.median([stream.step() for _ in range(calls)])))
    for stream in streams:
        stream.start()
    turns = [[stream.step() for stream in streams] for _ in range(calls)]
    return alone, np.median(np.array(turns), axis=0).tolist()


def measure(options: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    spec = spec_of(options)
    bundles = [open_bundle(folder) for folder in (options.bundle, options.draft)]
    for bundle in bundles:
        check_recipe(bundle, spec)
    steps.text("loading each model twice")
    ways = {way: [Stream(bundle, spec, way, options.past, options.calls) for bundle in bundles] for way in WAYS}
    found: dict[str, list[tuple[list[float], list[float]]]] = {way: [] for way in WAYS}
    seen: list[set[tuple[int, ...]]] = [set(), set()]
    for turn in range(-1, options.rounds):
        steps.count("timing", max(turn, 0), options.rounds)
        for way, streams in ways.items():
            times = round_of(streams, options.calls)
            for tokens, stream in zip(seen, streams, strict=True):
                tokens.add(tuple(stream.tokens))
            if turn >= 0:
                found[way].append(times)
    equal = all(len(tokens) == 1 for tokens in seen)
    return {
        "past": options.past,
        "calls": options.calls,
        "equal": equal,
        "ms": {way: (np.median(np.array(times), axis=0) * 1e3).tolist() for way, times in found.items()},
        "claims": [
            Claim(f"{model} in turns / alone, {way}", _ratio(times, index) if equal else None, at_most=bound)
            for way, times, bound in (("stopping", found["stopping"], MOST), ("spinning", found["spinning"], None))
            for index, model in enumerate(("target", "draft"))
        ],
    }


def _ratio(times: list[tuple[list[float], list[float]]], index: int) -> Ratio:
    low, middle, high = np.percentile([turns[index] / alone[index] for alone, turns in times], (25, 50, 75))
    return Ratio(float(middle), float(low), float(high))


def show(results: dict[str, Any]) -> None:
    columns = [("threads", False), *((f"{model} {how} ms", True) for how in ("alone", "in turns") for model in "TD")]
    rows = [[way, *(f"{ms:.2f}" for ms in (*alone, *turns))] for way, (alone, turns) in results["ms"].items()]
    table(columns, rows, f"calls of one row behind {results['past']}: T the target, D the draft")
    show_claims(results["claims"])


def options() -> argparse.Namespace:
    made = parser(__doc__, rounds=5)
    made.add_argument("--draft", type=Path, required=True, metavar="BUNDLE", help="the second model")
    made.add_argument("--past", type=positive, default=64, metavar="N", help="prompt tokens (default: %(default)s)")
    made.add_argument("--calls", type=positive, default=24, metavar="N", help="calls a round (default: %(default)s)")
    return made.parse_args()


if __name__ == "__main__":
    run(measure, show, options())
