"""Peak resident memory of a fresh process that runs one short request (Linux).

plain: a default ONNX Runtime session on the user's export (--model). frozen: the same on the bundle's frozen
graph. engine: the loaded qbpass engine on the bundle. Each figure is the process's VmHWM, Python and its
imports included. All generate the same tokens or get no ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from measuring.claims import Claim, answer, show_claims
from measuring.script import add_request, parser, run

from qbpass.admission.probes.interleaved import Ratio
from qbpass.models.errors import QbpassError
from qbpass.models.loading import find_graph
from qbpass.rewrites.bundle import open_bundle
from qbpass.screen import Steps, table


def measure(options: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    bundle = open_bundle(options.bundle)
    paths = {"frozen": bundle.reference.path, "engine": bundle.folder}
    if options.model is not None:
        paths = {"plain": find_graph(options.model), **paths}
    prompt = np.random.default_rng(0).integers(0, bundle.manifest.interface.vocab_size, options.prompt).tolist()
    shared = {
        "threads": options.threads,
        "tokens": options.tokens,
        "prompt": prompt,
        "contract": asdict(bundle.reference.contract),
    }
    found: dict[str, list[dict[str, Any]]] = {form: [] for form in paths}
    for turn in range(options.rounds):
        for form, path in paths.items():
            steps.count(f"{form}: a fresh process", turn, options.rounds)
            found[form].append(_fresh({"form": form, "path": str(path.resolve()), **shared}))
    tokens = {form: {tuple(entry["tokens"]) for entry in entries} for form, entries in found.items()}
    equal = {form: seen == tokens["frozen"] and len(seen) == 1 for form, seen in tokens.items()}
    bases = [form for form in paths if form != "engine"]
    return {
        "prompt": options.prompt,
        "tokens": options.tokens,
        "peak_mb": {form: statistics.median(e["peak_mb"] for e in entries) for form, entries in found.items()},
        "held_mb": {form: statistics.median(e["held_mb"] for e in entries) for form, entries in found.items()},
        "equal_to_frozen": equal,
        "claims": [
            Claim(f"engine / {base}", _ratio(found, base) if equal["engine"] and equal[base] else None, at_most=1.25)
            for base in bases
        ],
    }


def _ratio(found: dict[str, list[dict[str, Any]]], base: str) -> Ratio:
    pairs = zip(found["engine"], found[base], strict=True)
    low, median, high = np.percentile([ours["peak_mb"] / theirs["peak_mb"] for ours, theirs in pairs], (25, 50, 75))
    return Ratio(float(median), float(low), float(high))


def _fresh(job: dict[str, Any]) -> dict[str, Any]:
    """resident.py's answer. Raises QbpassError with its last line where it fails."""
    ended = subprocess.run(
        [sys.executable, "-m", "measuring.resident"],
        input=json.dumps(job),
        cwd=Path(__file__).resolve().parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        last = ended.stderr.strip().splitlines()[-1:] or [f"exit status {ended.returncode}"]
        raise QbpassError(f"the {job['form']} process failed: {last[0]}")
    answered: dict[str, Any] = json.loads(ended.stdout)
    return answered


def show(results: dict[str, Any]) -> None:
    rows = [
        [form, f"{peak:.0f}", f"{results['held_mb'][form]:.0f}", answer(results["equal_to_frozen"][form])]
        for form, peak in results["peak_mb"].items()
    ]
    columns = [("process", False), ("peak MB", True), ("held MB", True), ("tokens = frozen", False)]
    table(columns, rows, f"{results['tokens']} tokens behind a prompt of {results['prompt']}")
    show_claims(results["claims"])


def options() -> argparse.Namespace:
    made = parser(__doc__, rounds=3)
    made.add_argument("--model", type=Path, metavar="MODEL", help="the export the bundle was made from")
    add_request(made, prompt=32, tokens=16)
    return made.parse_args()


if __name__ == "__main__":
    run(measure, show, options())
