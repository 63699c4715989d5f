"""Seconds and memory of admission and planning on a graph of a large model's shape, without its weights.

    python benchmarks/large_graph.py [--layers 32] [--json F]

The graph has the nodes of Llama-3.1-8B; its weights are named by reference and do not exist. Prints each step's seconds
and the process's peak resident memory, what Python and ONNX Runtime take included.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

from measuring.llama_shape import LlamaShape, llama_graph

from qbpass.admission import admit
from qbpass.models.loading import load_graph
from qbpass.models.session import SessionSpec
from qbpass.rewrites.apply import rewrite_graph
from qbpass.rewrites.planner import make_plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(llama_graph(LlamaShape(layers=options.layers)).SerializeToString())
        result = measure(path, SessionSpec("cpu", options.threads))
    print("\n".join(f"{name:24} {value}" for name, value in result.items()))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def measure(path: Path, spec: SessionSpec) -> dict[str, float]:
    """Seconds of each step, counts, and the peak resident memory in MB."""
    result: dict[str, float] = {}
    clock = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        result[f"{name} s"] = round(now - clock, 2)
        clock = now

    decoder = load_graph(path, weights="ignored")
    lap("load")
    report = admit(decoder)
    lap("admit")
    plan = make_plan(decoder, report, "qb", spec)
    lap("plan")
    result["admission and planning s"] = round(sum(result.values()), 2)
    rewrite_graph(decoder, plan)
    lap("rewrite")
    result["nodes"] = len(decoder.model.graph.node)
    result["sites admitted"] = sum(site.admitted for site in report.sites)
    result["peak resident MB"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return result


if __name__ == "__main__":
    main()
