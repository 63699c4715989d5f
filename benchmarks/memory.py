"""Peak resident memory of a fresh process that runs one short request (Linux).

plain: a default ONNX Runtime session on the user's export (--model). frozen: the same on the bundle's frozen graph.
engine: the loaded qbpass engine on the bundle, and, where that has sessions for rows alone, lean: without them. phases:
the same graph as target, as draft and in the exported layout, with calls of every width. layouts (--layouts): the same
of one graph that holds QB and PQ beside the native layout. Each figure is the process's VmHWM, Python and its imports
included; pages of weight files that several sessions map count once each there, and not at all in what is not files.
All generate the same tokens or get no ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from measuring.claims import Claim, answer, show_claims
from measuring.script import add_request, parser, run, spec_of

from qbpass.admission.probes.interleaved import Ratio
from qbpass.models.errors import QbpassError
from qbpass.models.loading import find_graph
from qbpass.models.session import SessionSpec
from qbpass.rewrites.apply import rewrite_graph
from qbpass.rewrites.bundle import Bundle, open_bundle, plan_for
from qbpass.screen import Steps, table

#: What each form should take of a plain session at most.
MOST = {"engine": 1.25, "lean": 1.25, "phases": 1.3, "layouts": 1.3}
MOST_OF_TWO_SESSIONS = 2.0


def measure(options: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    bundle = open_bundle(options.bundle)
    with tempfile.TemporaryDirectory(prefix="qbpass.") as folder:
        return _measure(options, steps, bundle, Path(folder))


def _measure(options: argparse.Namespace, steps: Steps, bundle: Bundle, folder: Path) -> dict[str, Any]:
    """folder: for a while, the frozen graph with its weights named from one folder, and the other layout's bundle."""
    graph, weights = bundle.weights.in_one_folder(bundle.reference.path.read_bytes())
    (folder / "frozen.onnx").write_bytes(graph)
    paths = {"frozen": folder / "frozen.onnx", "engine": bundle.folder, "phases": bundle.folder}
    if bundle.appends_in_place:
        paths["lean"] = bundle.folder
    if options.model is not None:
        paths = {"plain": find_graph(options.model), **paths}
    both: dict[str, Any] = {}
    if options.layouts:
        steps.text("planning qb and pq, and one graph for both")
        both = _both(bundle, folder / "both.onnx", spec_of(options))
        paths["layouts"] = bundle.folder
    prompt = np.random.default_rng(0).integers(0, bundle.manifest.interface.vocab_size, options.prompt).tolist()
    shared = {
        "threads": options.threads,
        "tokens": options.tokens,
        "prompt": prompt,
        "contract": asdict(bundle.reference.contract),
        "folder": str(weights),
    }
    found: dict[str, list[dict[str, Any]]] = {form: [] for form in paths}
    for turn in range(options.rounds):
        for form, path in paths.items():
            steps.count(f"{form}: a fresh process", turn, options.rounds)
            more = {"both": both if form == "layouts" else None}
            found[form].append(_fresh({"form": form, "path": str(path.resolve()), **shared, **more}))
    tokens = {form: {tuple(entry["tokens"]) for entry in entries} for form, entries in found.items()}
    equal = {form: seen == tokens["frozen"] and len(seen) == 1 for form, seen in tokens.items()}
    ours = {form: most for form, most in MOST.items() if form in paths}
    if "lean" in paths:  # a second session, with packed weights of its own
        ours["engine"] = MOST_OF_TWO_SESSIONS
    bases = [form for form in paths if form not in ours]
    return {
        "prompt": options.prompt,
        "tokens": options.tokens,
        "peak_mb": {form: statistics.median(e["peak_mb"] for e in entries) for form, entries in found.items()},
        "own_mb": {form: statistics.median(e["own_mb"] for e in entries) for form, entries in found.items()},
        "held_mb": {form: statistics.median(e["held_mb"] for e in entries) for form, entries in found.items()},
        "equal_to_frozen": equal,
        "claims": [
            Claim(f"{form} / {base}", _ratio(found, form, base) if equal[form] and equal[base] else None, at_most=most)
            for form, most in ours.items()
            for base in bases
        ],
    }


def _both(bundle: Bundle, graph: Path, spec: SessionSpec) -> dict[str, Any]:
    """Writes the graph, and tells what a process that did not make the plans has to know of them."""
    first, second = (plan_for(bundle, layout, spec) for layout in ("qb", "pq"))
    graph.write_bytes(rewrite_graph(bundle.reference, first, beside=second).SerializeToString())
    rule = first.extents
    return {
        "graph": str(graph),
        "extents": [rule.modulus, list(rule.residues)],
        "segments": first.segments,
        "phase_mask": first.phase_mask,
        "head": first.head,
    }


def _ratio(found: dict[str, list[dict[str, Any]]], form: str, base: str) -> Ratio:
    pairs = zip(found[form], found[base], strict=True)
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
        [
            form,
            *(f"{mb:.0f}" for mb in (peak, *(results[what][form] for what in ("held_mb", "own_mb")))),
            answer(results["equal_to_frozen"][form]),
        ]
        for form, peak in results["peak_mb"].items()
    ]
    columns = [
        ("process", False),
        ("peak MB", True),
        ("held MB", True),
        ("of it not files", True),
        ("tokens = frozen", False),
    ]
    table(columns, rows, f"{results['tokens']} tokens behind a prompt of {results['prompt']}")
    show_claims(results["claims"])


def options() -> argparse.Namespace:
    made = parser(__doc__, rounds=3)
    made.add_argument("--model", type=Path, metavar="MODEL", help="the export the bundle was made from")
    made.add_argument("--layouts", action="store_true", help="also one process with both layouts")
    add_request(made, prompt=32, tokens=16)
    return made.parse_args()


if __name__ == "__main__":
    run(measure, show, options())
