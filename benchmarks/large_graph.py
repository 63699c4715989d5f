"""Seconds and memory that a graph of a large model's shape takes, without its weights.

    python benchmarks/large_graph.py [--layers 32] [--vocabulary 128256] [--int4] [--json F]

The graph has the nodes of Llama-3.1-8B. Float32: its weights are named by reference and do not exist; it is loaded,
admitted, planned and rewritten. --int4: its products are MatMulNBits, it is taken for frozen, and a whole bundle is
written for it. Its weight file is there, of the right size, and holds only zeros that take no disk (a sparse file):
digests are real, but of zeros. What `qbpass rewrite` does besides, running the whole decoder once against the
reference, loads all weights and is left out. Prints each step's seconds, what a bundle holds, and the process's peak
resident memory, what Python and ONNX Runtime take included.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path

import onnx
from measuring.llama_shape import ABSENT, LlamaShape, llama_graph, weight_bytes

from qbpass.admission import admit
from qbpass.models.freeze import FROZEN_KEY, PROVIDER_KEY
from qbpass.models.loading import load_decoder, load_graph
from qbpass.models.session import SessionSpec
from qbpass.models.weight_digests import kept_digest
from qbpass.rewrites.apply import rewrite_graph
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.manifest import MANIFEST_FILE
from qbpass.rewrites.planner import make_plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--int4", action="store_true", help="write a bundle for the graph in 4 bits")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    spec, shape = SessionSpec("cpu", options.threads), LlamaShape(layers=options.layers, vocabulary=options.vocabulary)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model" / "model.onnx"
        path.parent.mkdir()
        model = llama_graph(shape, int4=options.int4)
        if options.int4:
            result = measure_bundle(frozen_file(model, path), Path(folder), spec)
        else:
            path.write_bytes(model.SerializeToString())
            result = measure(path, spec)
    result["peak resident MB"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print("\n".join(f"{name:50} {value:,}" for name, value in result.items()))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


class _Clock:
    """Seconds since the last lap, the clock's and the processor's: the second do not count what other programs take."""

    def __init__(self, result: dict[str, float]) -> None:
        self.result, self.last = result, (time.perf_counter(), time.process_time())

    def lap(self, name: str) -> None:
        now = time.perf_counter(), time.process_time()
        for kind, since, until in zip(("s", "processor s"), self.last, now, strict=True):
            self.result[f"{name} {kind}"] = round(until - since, 2)
        self.last = now


def measure(path: Path, spec: SessionSpec) -> dict[str, float]:
    """Seconds of each step, and counts."""
    result: dict[str, float] = {}
    clock = _Clock(result)
    decoder = load_graph(path, weights="ignored")
    clock.lap("load")
    report = admit(decoder)
    clock.lap("admit")
    plan = make_plan(decoder, report, "qb", spec)
    clock.lap("plan")
    for kind in ("s", "processor s"):
        steps = [result[f"{step} {kind}"] for step in ("load", "admit", "plan")]
        result[f"admission and planning {kind}"] = round(sum(steps), 2)
    rewrite_graph(decoder, plan)
    clock.lap("rewrite")
    result["nodes"] = len(decoder.model.graph.node)
    result["sites admitted"] = sum(site.admitted for site in report.sites)
    return result


def frozen_file(model: onnx.ModelProto, path: Path) -> Path:
    """The graph as one that was frozen before, its weights a sparse file beside it."""
    import onnxruntime as ort

    for key, value in ((FROZEN_KEY, ort.__version__), (PROVIDER_KEY, "cpu")):
        model.metadata_props.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())
    weights = path.with_name(ABSENT)
    with weights.open("wb") as file:
        file.truncate(weight_bytes(model))
    return path


def measure_bundle(path: Path, folder: Path, spec: SessionSpec) -> dict[str, float]:
    """Seconds of reading the weights for their digest, of writing a bundle without that, and bytes written.

    The digest comes first, into a cache of this run's own: `write_bundle` then finds it there, as every later start of
    the bundle does.
    """
    os.environ["QBPASS_CACHE"] = str(folder / "cache")
    weights = path.with_name(ABSENT)
    time.sleep(2.5)  # a file written just now has no digest that could be kept
    result: dict[str, float] = {}
    clock = _Clock(result)
    kept_digest(weights)
    clock.lap("digest of the weights, once:")
    decoder = load_decoder(path)
    bundle, plan, report = write_bundle(decoder, folder / "bundle", "qb", spec)
    clock.lap("load, admit, plan, rewrite and write:")
    held = [file for file in bundle.folder.rglob("*") if file.is_file()]
    graphs = {bundle.folder / name for name in (*bundle.manifest.files, MANIFEST_FILE)}
    return result | {
        "nodes": len(decoder.model.graph.node),
        "sites rewritten": len(plan.sites),
        "sites admitted": sum(site.admitted for site in report.sites),
        "weight file bytes": weights.stat().st_size,
        "bytes written that are no graph": sum(file.stat().st_size for file in held if file not in graphs),
        "bundle bytes": sum(file.stat().st_size for file in held),
    }


if __name__ == "__main__":
    main()
