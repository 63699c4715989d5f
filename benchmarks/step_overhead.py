"""What a verification step costs outside ONNX Runtime: binding, drafting, acceptance.

One request through the engine, serial and with n-gram drafting, for each bundle. A step is split by clocks: around the
sessions' runs, and, as the engine tells its policy, around the target's call and the drafter's; what is left is
acceptance, with the policy, the cache's rollback and the callback. The endpoint is compared with serial decoding's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measuring.claims import ABSENT, Claim, answer, show_claims
from measuring.script import add_request, parser, run, spec_of

from qbpass.admission.probes.interleaved import Ratio
from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import check_recipe, open_bundle
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.drafter import NoDrafter
from qbpass.runtime.drafting.ngram import NgramDrafter
from qbpass.runtime.endpoint import Endpoint
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.open_target import open_target
from qbpass.runtime.policy import FixedPolicy, Round
from qbpass.runtime.serial_target import SerialTarget
from qbpass.screen import Steps, table

PATTERN = 24  # prompt tokens before they repeat, so that the drafter has something to propose
PARTS = ("ort", "binding", "drafting", "acceptance")
MOST_OUTSIDE_MS = 0.5


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


class Clock(FixedPolicy):
    """A policy that keeps each round's seconds. ort: seconds of all sessions' runs so far."""

    def __init__(self) -> None:
        self.sessions: list[ClockedSession] = []
        self.marks: list[tuple[float, float, float, float]] = []
        self._verify = self._draft = 0.0

    def wrap(self, session: Any) -> ClockedSession:
        self.sessions.append(ClockedSession(session))
        return self.sessions[-1]

    def observe(self, round_: Round) -> None:
        self._verify += round_.verify_seconds
        self._draft += round_.draft_seconds

    def mark(self, tokens: Sequence[int]) -> None:
        """The end of a step."""
        del tokens
        ort = sum(session.seconds for session in self.sessions)
        self.marks.append((ort, self._verify, self._draft, time.perf_counter()))


def clocked_request(target: Any, drafter: Any, request: Request, clock: Clock) -> tuple[Endpoint, np.ndarray]:
    """The endpoint, and (steps, len(PARTS)) seconds. Prefill is no step. target: its sessions are the clock's."""
    clock.marks.clear()
    endpoint, _trace = Engine(target, drafter, clock).generate(request, clock.mark)
    ort, verify, draft, step = np.diff(np.array(clock.marks), axis=0).T
    return endpoint, np.stack([ort, verify - ort, draft, step - verify - draft], axis=1)


def clocked_targets(folder: Path, spec: SessionSpec) -> tuple[dict[str, Any], dict[str, Clock], int]:
    """R and the bundle's own target, every session of theirs clocked; and the vocabulary's size."""
    bundle = open_bundle(folder)
    check_recipe(bundle, spec)
    clocks = {"R": Clock(), "block": Clock()}
    serial = SerialTarget.from_bundle(bundle, spec)
    block = open_target(bundle, spec, reference=serial.session)
    if isinstance(block, BlockTarget):
        block.watch(lambda session, graph: clocks["block"].wrap(session))
    else:
        block.session = clocks["block"].wrap(block.session)
    serial.session = clocks["R"].wrap(serial.session)
    return {"R": serial, "block": block}, clocks, bundle.manifest.interface.vocab_size


def measure(options: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    return {
        "prompt": options.prompt,
        "tokens": options.tokens,
        "bundles": {str(folder): measured(folder, options, steps) for folder in (options.bundle, *options.more)},
    }


def measured(folder: Path, options: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    steps.text(f"loading the reference and {folder}")
    targets, clocks, vocabulary = clocked_targets(folder, spec_of(options))
    pattern = np.random.default_rng(0).integers(0, vocabulary, PATTERN)
    request = Request(tuple(np.resize(pattern, options.prompt).tolist()), options.tokens)
    endpoints: dict[str, set[Endpoint]] = {name: set() for name in targets}
    seconds: dict[str, list[np.ndarray]] = {name: [] for name in targets}
    for turn in range(-1, options.rounds):
        steps.count("timing", max(turn, 0), options.rounds)
        for name, target in targets.items():
            drafter = NgramDrafter() if name == "block" else NoDrafter()
            endpoint, found = clocked_request(target, drafter, request, clocks[name])
            endpoints[name].add(endpoint)
            if turn >= 0:
                seconds[name].append(found)
    equal = endpoints["block"] == endpoints["R"] and len(endpoints["R"]) == 1
    outside = np.concatenate(seconds["block"])[:, 1:].sum(axis=1) * 1e3
    low, middle, high = np.percentile(outside, (25, 50, 75))
    ratio = Ratio(float(middle), float(low), float(high))
    return {
        "equal_to_R": equal,
        "targets": {name: summary(np.concatenate(parts)) for name, parts in seconds.items()},
        "claims": [Claim("ms a step outside ONNX Runtime", ratio if equal else None, at_most=MOST_OUTSIDE_MS)],
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
    for folder, found in results["bundles"].items():
        rows = []
        for name, entry in found["targets"].items():
            equal = name == "R" or found["equal_to_R"]
            share = f"{entry['outside_share']:.1%}" if equal else ABSENT
            parts = [f"{entry['ms'][part]:.3f}" for part in PARTS]
            rows.append([name, str(entry["steps"]), *parts, f"{entry['outside_ms']:.3f}", share, answer(equal)])
        what = f"{results['tokens']} tokens behind a prompt of {results['prompt']}, medians over steps"
        table(columns, rows, f"{folder}: {what}")
        show_claims(found["claims"])


def options() -> argparse.Namespace:
    made = parser(__doc__, rounds=3)
    made.add_argument("more", type=Path, nargs="*", metavar="BUNDLE", help="further bundles")
    add_request(made, prompt=256, tokens=64)
    return made.parse_args()


if __name__ == "__main__":
    run(measure, show, options())
