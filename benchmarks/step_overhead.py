"""What a verification step costs outside ONNX Runtime: binding, drafting, acceptance.

One request through the engine, serial and with n-gram drafting. Each step is split by clocks around the
session's call and around the target's `verify`. The endpoint is compared with serial decoding's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from measuring.claims import ABSENT, answer
from measuring.script import add_request, parser, run, spec_of

from qbpass.rewrites.bundle import check_recipe, open_bundle
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.drafter import NoDrafter
from qbpass.runtime.drafting.ngram import NgramDrafter
from qbpass.runtime.endpoint import Endpoint
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.serial_target import SerialTarget
from qbpass.screen import Steps, table

PATTERN = 24  # prompt tokens before they repeat, so that the drafter has something to propose
PARTS = ("ort", "binding", "drafting and acceptance")


class ClockedSession:
    """A session that sums the seconds of its bound runs."""

    def __init__(self, session: Any):
        self._session = session
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run_with_iobinding(self, binding: Any) -> None:
        start = time.perf_counter()
        self._session.run_with_iobinding(binding)
        self.seconds += time.perf_counter() - start


class ClockedTarget:
    """A target that sums the seconds of its verifications."""

    def __init__(self, target: Any):
        self._target = target
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def verify(self, tokens: Sequence[int]) -> np.ndarray:
        start = time.perf_counter()
        rows: np.ndarray = self._target.verify(tokens)
        self.seconds += time.perf_counter() - start
        return rows


def clocked_request(target: Any, drafter: Any, request: Request) -> tuple[Endpoint, np.ndarray]:
    """The endpoint, and (steps, len(PARTS)) seconds. Prefill is no step."""
    session, clocked = ClockedSession(target.session), ClockedTarget(target)
    marks: list[tuple[float, float, float]] = []

    def mark(tokens: Sequence[int]) -> None:
        del tokens
        marks.append((session.seconds, clocked.seconds, time.perf_counter()))

    target.session = session
    try:
        endpoint, _trace = Engine(clocked, drafter).generate(request, mark)
    finally:
        target.session = session._session
    ort, verify, step = np.diff(np.array(marks), axis=0).T
    return endpoint, np.stack([ort, verify - ort, step - verify], axis=1)


def measure(options: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    spec, bundle = spec_of(options), open_bundle(options.bundle)
    check_recipe(bundle, spec)
    steps.text("loading the reference and the bundle")
    prefill = bundle.manifest.recipe.prefill
    targets = {
        "R": SerialTarget.from_frozen(bundle.reference, spec, prefill=prefill),
        "block": BlockTarget.from_bundle(bundle, spec),
    }
    drafters = {"R": NoDrafter(), "block": NgramDrafter()}
    pattern = np.random.default_rng(0).integers(0, bundle.manifest.interface.vocab_size, PATTERN)
    request = Request(tuple(np.resize(pattern, options.prompt).tolist()), options.tokens)
    endpoints: dict[str, set[Endpoint]] = {name: set() for name in targets}
    clocks: dict[str, list[np.ndarray]] = {name: [] for name in targets}
    for turn in range(-1, options.rounds):
        steps.count("timing", max(turn, 0), options.rounds)
        for name, target in targets.items():
            endpoint, seconds = clocked_request(target, drafters[name], request)
            endpoints[name].add(endpoint)
            if turn >= 0:
                clocks[name].append(seconds)
    return {
        "prompt": options.prompt,
        "tokens": options.tokens,
        "equal_to_R": endpoints["block"] == endpoints["R"] and len(endpoints["R"]) == 1,
        "targets": {name: summary(np.concatenate(parts)) for name, parts in clocks.items()},
    }


def summary(seconds: np.ndarray) -> dict[str, Any]:
    """Medians over (steps, parts) in ms, and the share of a step outside ONNX Runtime."""
    outside = seconds[:, 1:].sum(axis=1)
    return {
        "steps": len(seconds),
        "ms": dict(zip(PARTS, (np.median(seconds, axis=0) * 1e3).tolist(), strict=True)),
        "outside_ms": float(np.median(outside)) * 1e3,
        "outside_share": float(np.median(outside / seconds.sum(axis=1))),
    }


def show(results: dict[str, Any]) -> None:
    columns = [("target", False), ("steps", True), *((f"{part} ms", True) for part in PARTS)]
    columns += [("outside ORT ms", True), ("share of a step", True), ("endpoint = R", False)]
    rows = []
    for name, entry in results["targets"].items():
        equal = name == "R" or results["equal_to_R"]
        share = f"{entry['outside_share']:.1%}" if equal else ABSENT
        parts = [f"{entry['ms'][part]:.3f}" for part in PARTS]
        rows.append([name, str(entry["steps"]), *parts, f"{entry['outside_ms']:.3f}", share, answer(equal)])
    table(columns, rows, f"{results['tokens']} tokens behind a prompt of {results['prompt']}, medians over steps")


def options() -> argparse.Namespace:
    made = parser(__doc__, rounds=3)
    add_request(made, prompt=256, tokens=64)
    return made.parse_args()


if __name__ == "__main__":
    run(measure, show, options())
