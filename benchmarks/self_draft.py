"""Self drafts in several quantizations: what a proposal costs, how far it is right, and what whole requests gain.

Costs are ratios of medians of calls in turns; how far proposals are right is measured behind the bundle's own
continuations of a few prompts (runtime/self_draft/calibrate.py). Then each form drafts for whole requests, prefill
included, in turns with the serial reference, and every endpoint is compared. Last, whether the two sessions hinder each
other: rounds with worker threads that stop spinning when a run ends, as qbpass has them, and with ONNX Runtime's
default.
"""

from __future__ import annotations

import argparse
import statistics
import time
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from measuring.claims import ABSENT, answer
from measuring.script import parser, positive, run, spec_of

from qbpass.evidence.prompts import Prompt, read_prompts
from qbpass.models.errors import QbpassError
from qbpass.models.session import SessionSpec, open_session
from qbpass.models.tokenizer import TextCodec
from qbpass.rewrites.bundle import Bundle, check_recipe, open_bundle
from qbpass.rewrites.self_draft.quantize import QuantForm
from qbpass.rewrites.self_draft.store import GRAPH, draft_facts, draft_weights, stored_draft
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.choosing import GREEDY
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.open_target import open_target
from qbpass.runtime.self_draft.calibrate import call_costs, continuations, interleaved, step_cost, survival
from qbpass.runtime.self_draft.choice import FORMS, best_round
from qbpass.runtime.self_draft.drafter import SelfDrafter
from qbpass.runtime.self_draft.open import drafter_of
from qbpass.runtime.serial_target import SerialTarget
from qbpass.screen import Steps, say, table


def forms_of(bundle: Bundle) -> list[QuantForm]:
    """Those that `--draft self` chooses among, a larger block, a coarser head, and a head of the first third."""
    third = bundle.manifest.interface.vocab_size // 3
    return [*FORMS, QuantForm(8, 8, block=128), QuantForm(8, 4), QuantForm(8, 8, third)]


def measure(options: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    bundle, spec = open_bundle(options.bundle), spec_of(options)
    check_recipe(bundle, spec)
    target = open_target(bundle, spec)
    if not isinstance(target, BlockTarget):
        raise QbpassError(f"{options.bundle} is of layout gs, which has no cache to share with a draft")
    steps.text("listening to the target")
    said = [each for each in continuations(bundle, target) if len(each.tokens) >= target.max_queries]
    if not said:
        raise QbpassError(f"{options.bundle} says too little to be listened to: rewrite it with fewer --max-queries")
    calls = call_costs(target, said[0])
    prompts = _prompts(bundle, options)
    serial = Engine(SerialTarget.from_bundle(bundle, spec))
    candidates = []
    for form in forms_of(bundle):
        folder = stored_draft(bundle, form, progress=steps.count)
        drafter = drafter_of(bundle, target, form, folder, spec)
        steps.text(f"measuring {form.name}, block {form.block}")
        step, right = step_cost(drafter, said[0]), survival(drafter, said, target.max_queries - 1)
        proposals, expected = best_round(step, right, calls)
        entry = {
            "bits": form.bits,
            "head_bits": form.head_bits,
            "head_tokens": form.head_tokens,
            "block": form.block,
            "bytes": draft_facts(folder)["bytes"],
            "step": step,
            "right": right,
            "proposals": proposals,
            "expected_ratio": expected,
        }
        candidates.append(entry | _whole_requests(serial, target, drafter, prompts, proposals, options, steps))
    best = max(candidates, key=lambda entry: entry["expected_ratio"])
    form = QuantForm(best["bits"], best["head_bits"], best["head_tokens"], best["block"])
    return {
        "calls": calls,
        "prompts": len(prompts),
        "tokens": options.tokens,
        "candidates": candidates,
        "spinning": _spinning(bundle, target, form, said[0].prompt, spec, best["proposals"] or 1),
    }


def _prompts(bundle: Bundle, options: argparse.Namespace) -> list[Prompt]:
    known = bundle.reference.tokenizer_files
    if "tokenizer.json" not in known and options.prompts is None:
        raise QbpassError("this bundle has no tokenizer: give --prompts with token_ids")
    codec = TextCodec(known) if "tokenizer.json" in known else None
    with as_file(files("qbpass") / "data" / "demo_prompts.jsonl") as shipped:
        return read_prompts(options.prompts or shipped, codec)[: options.limit]


def _whole_requests(
    serial: Engine,
    target: BlockTarget,
    drafter: SelfDrafter,
    prompts: list[Prompt],
    proposals: int,
    options: argparse.Namespace,
    steps: Steps,
) -> dict[str, Any]:
    """The geometric mean and the worst of the prompts' ratios of seconds, in turns with serial decoding."""
    if not proposals:
        return {"equal_to_R": None, "ratio": None, "worst": None, "acceptance": None, "tokens_per_round": None}
    engine, ratios, equal = Engine(target, drafter), [], True
    accepted = proposed = rounds = generated = 0
    for index, prompt in enumerate(prompts):
        steps.count("whole requests", index, len(prompts))
        request = Request(prompt.token_ids, options.tokens, k=proposals)
        seconds: dict[str, list[float]] = {"R": [], "C": []}
        for _ in range(options.rounds):
            for name, each in (("R", serial), ("C", engine)):
                before = time.perf_counter()
                endpoint, trace = each.generate(request)
                seconds[name].append(time.perf_counter() - before)
                if name == "R":
                    wanted = endpoint
            equal = equal and endpoint == wanted
        ratios.append(statistics.median(seconds["R"]) / statistics.median(seconds["C"]))
        accepted, proposed = accepted + trace.accepted, proposed + trace.proposed
        rounds, generated = rounds + trace.rounds, generated + endpoint.length
    return {
        "equal_to_R": equal,
        "ratio": statistics.geometric_mean(ratios),
        "worst": min(ratios),
        "acceptance": accepted / proposed if proposed else None,
        "tokens_per_round": (generated - len(prompts)) / rounds if rounds else None,
    }


def _spinning(
    bundle: Bundle, target: BlockTarget, form: QuantForm, prompt: tuple[int, ...], spec: SessionSpec, proposals: int
) -> dict[str, float]:
    """Seconds of a round (proposals, then their verification) where the draft's threads stop spinning, and where not.

    The target's own session is the same in both.
    """
    folder = stored_draft(bundle, form)
    entries = {"stops": {}, "spins": {"session.force_spinning_stop": "0"}}
    drafters = [
        SelfDrafter(
            open_session(folder / GRAPH, spec, weights=draft_weights(bundle, folder), entries=entry),
            target,
            form.head_tokens,
        )
        for entry in entries.values()
    ]
    rows = len(prompt) + target.max_queries
    target.start(rows)
    target.prefill(prompt[:-1])
    for drafter in drafters:
        drafter.start(prompt, rows)
        drafter.extend(prompt[-1:])

    def a_round(drafter: SelfDrafter) -> None:
        proposal = drafter.propose(proposals, GREEDY.fork)
        target.verify([prompt[-1], *proposal.tokens])
        target.rollback(len(prompt) - 1)

    seconds = interleaved([lambda drafter=drafter: a_round(drafter) for drafter in drafters])  # type: ignore[misc]
    return dict(zip(entries, seconds, strict=True))


def show(results: dict[str, Any]) -> None:
    columns = [("body", False), ("head", False), ("block", True), ("MB", True), ("step", True), ("1st right", True)]
    columns += [("a round", True), ("expected", True), ("measured", True), ("worst", True), ("acceptance", True)]
    columns += [("endpoints = R", False)]
    table(
        columns, [_row(entry) for entry in results["candidates"]], "Self drafts; step: over the target's call of a row"
    )
    costs = ", ".join(f"{rows}: {cost:.2f}" for rows, cost in enumerate(results["calls"], 1))
    say(f"The target's calls of so many rows, over one of a row: {costs}")
    spinning = results["spinning"]
    say(
        f"A round takes {spinning['stops'] * 1e3:.1f} ms where the draft's threads stop spinning, "
        f"{spinning['spins'] * 1e3:.1f} ms where they go on"
    )


def _row(entry: dict[str, Any]) -> list[str]:
    head = f"int{entry['head_bits']}" + (f", first {entry['head_tokens']}" if entry["head_tokens"] else "")
    equal = entry["equal_to_R"]
    measured = [f"{entry[key]:.2f}" if equal else ABSENT for key in ("ratio", "worst", "acceptance")]
    return [
        f"int{entry['bits']}",
        head,
        str(entry["block"]),
        f"{entry['bytes'] / 1e6:.0f}",
        f"{entry['step']:.2f}",
        f"{entry['right'][0]:.0%}",
        str(entry["proposals"]),
        f"{entry['expected_ratio']:.2f}",
        *measured,
        ABSENT if equal is None else answer(equal),
    ]


def options() -> argparse.Namespace:
    made = parser(__doc__, rounds=1)
    made.add_argument(
        "--tokens", type=positive, default=64, metavar="N", help="generated tokens (default: %(default)s)"
    )
    made.add_argument("--prompts", type=Path, metavar="F", help="prompts, one JSON object a line (default: the demo's)")
    made.add_argument("--limit", type=positive, default=8, metavar="N", help="of the prompts (default: %(default)s)")
    return made.parse_args()


if __name__ == "__main__":
    run(measure, show, options())
