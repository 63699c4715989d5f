"""Complete verification calls of 1 to max_queries rows, of every layout a bundle's model can be run in.

Each is divided by the frozen graph's own call of max_queries rows, round by round. MQ is the guarded graph's native
branch, GS the rows of a block as calls of their own (of a bundle of layout gs: its Loop). Before anything is timed the
rows are compared with serial decoding, byte for byte; MQ, which is the native graph, is there to be compared with.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measuring.claims import ABSENT, Claim, answer, show_claims
from measuring.script import parser, positive, run, spec_of

from qbpass.admission.probes.interleaved import Timings, interleave
from qbpass.evidence.arms import Targets
from qbpass.evidence.options import LAYOUT_NAMES
from qbpass.models.errors import QbpassError
from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle, check_recipe, open_bundle
from qbpass.rewrites.planner import RewriteRefused
from qbpass.runtime.rewinding_target import RewindingTarget
from qbpass.runtime.target import Target
from qbpass.screen import Steps, say, table

FROZEN = "frozen"
LEAST_GS_OVER_QB = 2.0


def layout_targets(
    bundle: Bundle, layouts: list[str], spec: SessionSpec, steps: Steps
) -> tuple[dict[str, Target], dict[str, str]]:
    """The frozen graph and each layout's target; and why a layout has none."""
    made, refused = Targets(bundle, spec, steps.text), {}
    frozen = RewindingTarget.on_session_of(made.of("R"), bundle, spec, bundle.manifest.max_queries)
    targets: dict[str, Target] = {FROZEN: frozen}
    for layout in layouts:
        try:
            targets[layout] = made.of(layout)
        except RewriteRefused as refusal:
            refused[layout] = str(refusal)
    return targets, refused


class Case:
    """The targets behind one past: the same random tokens, and what the rows behind them are."""

    def __init__(self, bundle: Bundle, targets: dict[str, Target], past: int):
        self.past, self.width, self.targets = past, bundle.manifest.max_queries, targets
        draw = np.random.default_rng(past)
        tokens = draw.integers(0, bundle.manifest.interface.vocab_size, past + self.width).tolist()
        self.block = tokens[past:]
        for target in targets.values():
            target.start(past + self.width)
            target.prefill(tokens[:past])
        self._frozen.keep()
        self._serial = np.concatenate([self._frozen.verify([token]).copy() for token in self.block])

    @property
    def _frozen(self) -> RewindingTarget:
        frozen = self.targets[FROZEN]
        assert isinstance(frozen, RewindingTarget)
        return frozen

    def rows(self, name: str, queries: int) -> np.ndarray:
        self.targets[name].rollback(self.past)
        return self.targets[name].verify(self.block[:queries]).copy()

    def equal(self, name: str, queries: int) -> bool:
        return self.rows(name, queries).tobytes() == self._serial[:queries].tobytes()

    def time(self, rounds: int, steps: Steps) -> Timings:
        calls: dict[str, Callable[[], object]] = {}
        before: dict[str, Callable[[], object]] = {}
        for name, target in self.targets.items():
            for queries in range(1, self.width + 1):
                calls[form(name, queries)] = partial(target.verify, self.block[:queries])
                before[form(name, queries)] = partial(target.rollback, self.past)
        return interleave(calls, rounds, before=before, progress=steps.count)


def form(name: str, queries: int) -> str:
    return f"{name} q={queries}"


def measure(options: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    return {"bundles": [of_bundle(folder, options, steps) for folder in options.bundles]}


def of_bundle(folder: Path, options: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    spec, bundle = spec_of(options), open_bundle(folder)
    check_recipe(bundle, spec)
    width, context = bundle.manifest.max_queries, bundle.manifest.context_length
    if context is not None and max(options.past) + width > context:
        raise QbpassError(f"--past {max(options.past)} leaves no room in {folder}'s context of {context}")
    targets, refused = layout_targets(bundle, options.layouts, spec, steps)
    found = []
    for past in options.past:
        steps.text(f"reading {past} rows of a random text")
        found.append(of_case(Case(bundle, targets, past), options.rounds, steps))
    return {"bundle": folder.name, "layout": bundle.manifest.layout, "refused": refused, "cases": found}


def of_case(case: Case, rounds: int, steps: Steps) -> dict[str, Any]:
    names = [name for name in case.targets if name != FROZEN]
    queries = range(1, case.width + 1)
    equal = {form(name, q): case.equal(name, q) for name in names for q in queries if name != "MQ"}
    times, base = case.time(rounds, steps), form(FROZEN, case.width)
    keys = [form(name, q) for name in names for q in queries]
    costs = {key: times.ratio(key, base).median if equal.get(key, True) else None for key in keys}
    costs[form(FROZEN, 1)] = times.ratio(form(FROZEN, 1), base).median
    return {
        "past": case.past,
        "layouts": names,
        "queries": list(queries),
        "frozen_ms": times.median_ms(base),
        "costs": costs,
        "equal": equal,
        "claims": claims(times, equal, case.width),
    }


def claims(times: Timings, equal: dict[str, bool], width: int) -> list[Claim]:
    """What a block of GS costs over one of each other layout, where every row is accepted."""
    made = []
    for name in ("QB", "PQ"):
        top, bottom = form("GS", width), form(name, width)
        if top in equal and bottom in equal:
            ratio = times.ratio(top, bottom) if equal[top] and equal[bottom] else None
            made.append(Claim(f"{top} / {bottom}", ratio, at_least=LEAST_GS_OVER_QB if name == "QB" else None))
    return made


def show(results: dict[str, Any]) -> None:
    for bundle in results["bundles"]:
        for case in bundle["cases"]:
            columns = [("layout", False), *((f"q={q}", True) for q in case["queries"]), ("rows equal", False)]
            rows = []
            for name in case["layouts"]:
                keys = [form(name, q) for q in case["queries"]]
                costs = [ABSENT if case["costs"][key] is None else f"{case['costs'][key]:.3f}" for key in keys]
                same = None if name == "MQ" else all(case["equal"][key] for key in keys)
                rows.append([name, *costs, answer(same)])
            widest = case["queries"][-1]
            title = f"{bundle['bundle']}, past {case['past']}: over the frozen graph's call of {widest} rows"
            table(columns, rows, f"{title} ({case['frozen_ms']:.1f} ms; one row {case['costs'][form(FROZEN, 1)]:.3f})")
            show_claims(case["claims"])
        for layout, why in bundle["refused"].items():
            say(f"{bundle['bundle']}: no {layout}: {why}")


def numbers(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def layouts(text: str) -> list[str]:
    """Layouts by name, in any case. Raises ArgumentTypeError for others."""
    named = [part.strip().upper() for part in text.split(",")]
    unknown = [name for name in named if name not in LAYOUT_NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(LAYOUT_NAMES)}")
    return named


def options() -> argparse.Namespace:
    made = parser(__doc__, rounds=15, bundle=False)
    made.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE", help="a folder that `qbpass rewrite` wrote")
    made.add_argument(
        "--past", type=numbers, default=[150, 512, 1024], metavar="N,N", help="rows in the cache (150,512,1024)"
    )
    made.add_argument(
        "--layouts", type=layouts, default=list(LAYOUT_NAMES), metavar="L,L", help="which to time (MQ,QB,PQ,GS)"
    )
    return made.parse_args()


if __name__ == "__main__":
    run(measure, show, options())
