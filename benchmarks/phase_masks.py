"""All sixteen phase masks of a bundle whose reference reads its prompt one row a call (--prefill one).

Target and draft are the bundle's model in two roles. Under every mask both read their prompts in micro-batches, so a
phase whose bit is not in the mask evaluates several rows in the native graph. Equal means equal to serial evaluation:
endpoints, logit rows of a forced replay, KV caches byte for byte, and every token the draft proposes.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from measuring.claims import answer
from measuring.script import parser, positive, run, spec_of

from qbpass.evidence.phase_masks import minimal, phase_masks
from qbpass.evidence.prompts import Prompt, read_prompts
from qbpass.models.errors import QbpassError
from qbpass.models.tokenizer import TextCodec
from qbpass.rewrites.bundle import Bundle, open_bundle, plan_for
from qbpass.rewrites.phases import Phase
from qbpass.screen import Steps, say, table


def read(path: Path | None, bundle: Bundle) -> list[Prompt]:
    """The prompts of a file, or those that qbpass is shipped with."""
    tokenizer = bundle.reference.tokenizer_files
    codec = TextCodec(tokenizer) if "tokenizer.json" in tokenizer else None
    if path is not None:
        return read_prompts(path, codec)
    with as_file(files("qbpass") / "data" / "demo_prompts.jsonl") as shipped:
        return read_prompts(shipped, codec)


def measure(options: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    spec, bundle = spec_of(options), open_bundle(options.bundle)
    layout = bundle.manifest.layout
    if layout == "gs":
        raise QbpassError(f"{bundle.folder} is of layout gs: masks are compared for qb and pq")
    prompts = read(options.prompts, bundle)
    steps.text("planning")
    plan = plan_for(bundle, layout, spec)
    results = phase_masks(bundle, plan, prompts, spec, max_new_tokens=options.tokens, progress=steps.count)
    return {
        "layout": layout,
        "prompts": len(prompts),
        "tokens": options.tokens,
        "masks": [{**asdict(r), "target_passes": r.target_passes, "passes": r.passes} for r in results],
        "minimal_for_target": minimal(r.mask for r in results if r.target_passes),
        "minimal_for_target_and_draft": minimal(r.mask for r in results if r.passes),
    }


def show(results: dict[str, Any]) -> None:
    columns = [("mask", True), ("active in", False), ("endpoints", True), ("logit rows", True), ("KV", True)]
    columns += [("target", False), ("proposals", True), ("draft KV", True), ("target and draft", False)]
    rows = []
    for entry in results["masks"]:
        of = entry["prompts"]
        rows.append(
            [
                str(entry["mask"]),
                named(entry["mask"]),
                f"{entry['endpoints']}/{of}",
                f"{entry['rows_equal']}/{entry['rows']}",
                f"{entry['kv']}/{of}",
                answer(entry["target_passes"]),
                f"{entry['proposals']}/{of}",
                f"{entry['draft_kv']}/{of}",
                answer(entry["passes"]),
            ]
        )
    table(columns, rows, f"layout {results['layout']}, {results['prompts']} prompts, {results['tokens']} tokens each")
    for what, key in (("the target", "minimal_for_target"), ("target and draft", "minimal_for_target_and_draft")):
        masks = ", ".join(f"{mask} ({named(mask)})" for mask in results[key]) or "none"
        say(f"smallest masks under which {what} equal{'s' if what == 'the target' else ''} serial evaluation: {masks}")


def named(mask: int) -> str:
    return ", ".join((phase.name or "").lower().replace("_", " ") for phase in Phase if phase & mask) or "nothing"


def options() -> argparse.Namespace:
    made = parser(__doc__, rounds=1)
    made.add_argument("--prompts", type=Path, metavar="F", help="a .jsonl file (default: the four that are shipped)")
    made.add_argument(
        "--tokens", type=positive, default=24, metavar="N", help="generated tokens (default: %(default)s)"
    )
    return made.parse_args()


if __name__ == "__main__":
    run(measure, show, options())
