"""Drafters and policies replayed over what serial decoding said: tokens a round, and seconds by a measured curve.

The bundle's reference answers the prompts once (or --recorded holds what it said), and the bundle's own calls of every
width are timed, in turns, behind two lengths of the cache. Then every drafter runs with every policy through the
engine's own transaction, on a clock that only these costs move: no model runs, so it takes a moment, and the same
record gives the same figures. Ratios are of whole requests, prefill included, over calls of the target of one row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib.resources import as_file, files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from measuring.replayed import Recorded, Replay, Seconds, acceptance_by_grade, curve_of, replay
from measuring.script import parser, positive, run, spec_of

from qbpass.admission.probes.interleaved import interleave
from qbpass.evidence.prompts import read_prompts
from qbpass.models.errors import QbpassError
from qbpass.models.session import SessionSpec
from qbpass.models.tokenizer import TextCodec
from qbpass.rewrites.bundle import Bundle, check_recipe, open_bundle
from qbpass.runtime.drafting.adaptive import AdaptivePolicy
from qbpass.runtime.drafting.named import LOOKED_UP
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.open_target import open_target
from qbpass.runtime.policy import DraftingPolicy, FixedPolicy
from qbpass.runtime.serial_target import SerialTarget
from qbpass.screen import Steps, say, table

DRAFTERS = [name for name in LOOKED_UP if name != "none"]


def record(bundle: Bundle, spec: SessionSpec, options: argparse.Namespace, steps: Steps) -> list[Recorded]:
    """What serial decoding says to each prompt, and how many of its rows reading the prompt took."""
    tokenizer = bundle.reference.tokenizer_files
    if "tokenizer.json" not in tokenizer and options.prompts is None:
        raise QbpassError("this bundle has no tokenizer: give --prompts with token_ids")
    codec = TextCodec(tokenizer) if "tokenizer.json" in tokenizer else None
    with as_file(files("qbpass") / "data" / "demo_prompts.jsonl") as shipped:
        prompts = read_prompts(options.prompts or shipped, codec)
    engine, stops = Engine(SerialTarget.from_bundle(bundle, spec)), frozenset(bundle.manifest.eos_token_ids)
    found = []
    for index, prompt in enumerate(prompts):
        steps.count(f"recording {prompt.id}", index, len(prompts))
        times = [time.perf_counter()]
        request = Request(prompt.token_ids, options.tokens, stops)
        endpoint, _ = engine.generate(request, lambda tokens, times=times: times.append(time.perf_counter()))
        rows = [after - before for before, after in pairwise(times[1:])]
        prefill = (times[1] - times[0]) / statistics.median(rows) if rows else 0.0
        found.append(Recorded(prompt.id, prompt.domain, prompt.token_ids, endpoint.token_ids, prefill))
    return found


def recorded(path: Path) -> list[Recorded]:
    """Raises QbpassError where the file is not what this script writes."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [
            Recorded(e["id"], e["domain"], tuple(e["prompt"]), tuple(e["output"]), float(e["prefill"])) for e in lines
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise QbpassError(
            f"{path} is no record of requests ({type(error).__name__}): leave it to be written"
        ) from error


def measured_curve(bundle: Bundle, spec: SessionSpec, options: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    """Median seconds of calls of 1 to max_queries rows, behind each of --past."""
    target = open_target(bundle, spec)
    widths = range(1, target.max_queries + 1)
    draw = np.random.default_rng(0)
    found: dict[int, dict[int, float]] = {}
    for past in options.past:
        tokens = draw.integers(0, target.vocab_size, past + target.max_queries).tolist()
        target.start(len(tokens))
        target.prefill(tokens[:past])
        calls: dict[str, Callable[[], object]] = {
            str(q): partial(target.verify, tokens[past : past + q]) for q in widths
        }
        before: dict[str, Callable[[], object]] = {name: partial(target.rollback, past) for name in calls}
        times = interleave(calls, options.rounds, before=before, progress=steps.count)
        found[past] = {q: times.median_ms(str(q)) / 1e3 for q in widths}
    return {"past": {str(past): {str(q): s for q, s in costs.items()} for past, costs in found.items()}}


def policies(max_queries: int) -> dict[str, tuple[Callable[[], DraftingPolicy], int]]:
    """Name -> (a new policy, the most tokens a round)."""
    widths = sorted({1, min(3, max_queries - 1), max_queries - 1})
    fixed = {f"fixed k={k}": (FixedPolicy, k) for k in widths}
    return {**fixed, "adaptive": (partial(AdaptivePolicy, max_queries), max_queries - 1)}


def measure(options: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    spec, bundle = spec_of(options), open_bundle(options.bundle)
    check_recipe(bundle, spec)
    if options.recorded is not None and options.recorded.exists():
        requests = recorded(options.recorded)
    else:
        requests = record(bundle, spec, options, steps)
        if options.recorded is not None:
            lines = [json.dumps(asdict(request)) for request in requests]
            options.recorded.write_text("\n".join(lines) + "\n", encoding="utf-8")
    requests = [request for request in requests if len(request.output) > 1]
    if not requests:
        raise QbpassError("no request has two tokens to replay: give other prompts")
    costs = measured_curve(bundle, spec, options, steps)
    seconds = curve_of({int(p): {int(q): s for q, s in row.items()} for p, row in costs["past"].items()})
    width = bundle.manifest.max_queries
    arms, grades = {}, {}
    for drafter in DRAFTERS:
        steps.text(f"replaying {drafter}")
        for name, (policy, k) in policies(width).items():
            arms[f"{drafter}, {name}"] = of_arm(requests, drafter, policy(), k, seconds, width)
        grades[drafter] = acceptance_by_grade(requests, LOOKED_UP[drafter], width - 1)
    return {"requests": len(requests), "curve": costs, "arms": arms, "acceptance_by_grade": grades}


def of_arm(
    requests: list[Recorded], drafter: str, policy: DraftingPolicy, k: int, seconds: Seconds, width: int
) -> dict[str, Any]:
    """All requests, one after another, through one drafter and one policy, as an engine would."""
    proposes = LOOKED_UP[drafter]()
    done = [replay(request, proposes, policy, seconds, max_queries=width, k=k) for request in requests]
    ratios = [each.ratio for each in done]
    domains: dict[str, list[float]] = {}
    for request, ratio in zip(requests, ratios, strict=True):
        domains.setdefault(request.domain, []).append(ratio)
    return {
        **_shares(done),
        "geometric_mean": statistics.geometric_mean(ratios),
        "worst": min(ratios),
        "by_domain": {domain: statistics.geometric_mean(each) for domain, each in domains.items()},
    }


def _shares(done: list[Replay]) -> dict[str, float]:
    rounds = [round_ for each in done for round_ in each.rounds]
    proposed, accepted = (sum(getattr(r, name) for r in rounds) for name in ("proposed", "accepted"))
    return {
        "tokens_per_round": sum(len(r.tokens) for r in rounds) / len(rounds),
        "acceptance": accepted / proposed if proposed else 0.0,
        "mean_k": proposed / len(rounds),
        "undrafted_rounds": sum(not r.proposed for r in rounds) / len(rounds),
    }


def show(results: dict[str, Any]) -> None:
    for past, costs in results["curve"]["past"].items():
        ratios = ", ".join(f"{q}: {s / costs['1']:.2f}" for q, s in costs.items())
        say(f"calls behind {past} rows, over one row ({costs['1'] * 1e3:.1f} ms): {ratios}")
    heads = ["tokens/round", "acceptance", "k", "undrafted", "geo. mean", "worst"]
    keys = ["tokens_per_round", "acceptance", "mean_k", "undrafted_rounds", "geometric_mean", "worst"]
    columns = [("drafter, policy", False), *((head, True) for head in heads)]
    rows = [[name, *(f"{arm[key]:.2f}" for key in keys)] for name, arm in results["arms"].items()]
    table(columns, rows, f"\n{results['requests']} requests replayed")
    adaptive = {name: arm for name, arm in results["arms"].items() if name.endswith("adaptive")}
    domains = next(iter(adaptive.values()))["by_domain"]
    by_domain = [[domain, *(f"{arm['by_domain'][domain]:.2f}" for arm in adaptive.values())] for domain in domains]
    table([("domain", False), *((name, True) for name in adaptive)], by_domain, "")
    for drafter, grades in results["acceptance_by_grade"].items():
        places = range(1, 1 + max((len(entry["accepted"]) for entry in grades), default=0))
        grade_columns = [("grade", True), ("proposals", True), *((f"first {place}", True) for place in places)]
        cells = [
            [str(entry["grade"]), str(entry["proposals"]), *(f"{share:.0%}" for share in entry["accepted"])]
            for entry in grades
        ]
        table(grade_columns, cells, f"\n{drafter}: proposals of each grade whose first tokens were right")


def numbers(text: str) -> list[int]:
    found = [positive(part) for part in text.split(",")]
    if len(set(found)) < 2:
        raise argparse.ArgumentTypeError("two different lengths at least")
    return found


def options() -> argparse.Namespace:
    made = parser(__doc__, rounds=9)
    made.add_argument(
        "--prompts", type=Path, metavar="F", help="prompts, one JSON object a line (default: those qbpass ships)"
    )
    made.add_argument("--recorded", type=Path, metavar="F", help="read requests from F, or write them where it is not")
    made.add_argument("--tokens", type=positive, default=96, metavar="N", help="new tokens a prompt (%(default)s)")
    made.add_argument(
        "--past",
        type=numbers,
        default=[64, 512],
        metavar="N,N",
        help="rows in the cache where calls are timed (64,512)",
    )
    return made.parse_args()


if __name__ == "__main__":
    run(measure, show, options())
