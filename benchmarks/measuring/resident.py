"""One short request in this process, and the memory it took. Run by memory.py, in a fresh process for each form.

Reads a JSON object on stdin: form (plain | frozen | engine | phases | layouts), path (a model, or a bundle's
folder), folder (of the frozen graph's weights), both (a graph of two layouts and what its target is made with),
threads, tokens (how many to generate), prompt, contract (the decoder's). Writes another: tokens, peak_mb
(VmHWM), held_mb (VmRSS, all still loaded). The forms without qbpass import neither onnx nor any part of qbpass
but the contract's type.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from qbpass.models.contract import DecoderContract, KVPair


def plain_request(job: dict[str, Any]) -> tuple[list[int], Any]:
    """The tokens, and what must stay loaded."""
    from measuring.user_loop import bound_loop, plain_session

    contract = DecoderContract(**{**job["contract"], "kv": tuple(KVPair(**pair) for pair in job["contract"]["kv"])})
    path, frozen = Path(job["path"]), job["form"] == "frozen"
    if frozen:
        session = plain_session(path.read_bytes(), job["threads"], frozen=True, folder=Path(job["folder"]))
    else:
        session = plain_session(path, job["threads"], frozen=False)
    return bound_loop(session, contract, job["prompt"], job["tokens"])[0], session


def engine_request(job: dict[str, Any]) -> tuple[list[int], Any]:
    """As `qbpass generate` opens a bundle; the form "lean": with --lean."""
    from qbpass.models.session import SessionSpec
    from qbpass.rewrites.bundle import check_recipe, open_bundle
    from qbpass.runtime.drafting.ngram import NgramDrafter
    from qbpass.runtime.engine import Engine, Request
    from qbpass.runtime.open_target import open_target

    spec, bundle = SessionSpec("cpu", job["threads"]), open_bundle(Path(job["path"]))
    check_recipe(bundle, spec)
    engine = Engine(open_target(bundle, spec, lean=job["form"] == "lean"), NgramDrafter())
    return list(engine.generate(Request(tuple(job["prompt"]), job["tokens"]))[0].token_ids), engine


def every_phase_request(job: dict[str, Any]) -> tuple[list[int], Any]:
    """The bundle as the target, as the draft and in the exported layout, each with calls of every width; where `both`
    is given, of a graph with two layouts, so that the second is a role of its own.
    """
    from qbpass.models.session import SessionSpec
    from qbpass.rewrites.bundle import check_recipe, open_bundle
    from qbpass.runtime.block_target import BlockTarget
    from qbpass.runtime.drafter import NoDrafter
    from qbpass.runtime.engine import Engine, Request

    spec, bundle = SessionSpec("cpu", job["threads"]), open_bundle(Path(job["path"]))
    check_recipe(bundle, spec)
    target = _two_layouts(bundle, job["both"], spec) if job["both"] else BlockTarget.from_bundle(bundle, spec)
    roles = [target, target.draft(spec, None), target.native(spec), *([target.second(spec)] if job["both"] else [])]
    request = Request(tuple(job["prompt"]), job["tokens"])
    told = set()
    for role in roles:
        told.add(Engine(role, NoDrafter()).generate(request)[0].token_ids)
        for width in range(1, bundle.manifest.max_queries + 1):
            role.start(len(job["prompt"]) + width)
            role.prefill(job["prompt"])
            role.verify(job["prompt"][:width])
    return list(told.pop()) if len(told) == 1 else [], roles


def _two_layouts(bundle: Any, both: dict[str, Any], spec: Any) -> Any:
    from qbpass.models.session import open_session
    from qbpass.rewrites.extents import ExtentRule
    from qbpass.runtime.block_target import BlockTarget

    modulus, residues = both["extents"]
    return BlockTarget(
        open_session(Path(both["graph"]).read_bytes(), spec, weights=bundle.weights),
        bundle.manifest.interface,
        spec,
        extents=ExtentRule(modulus, tuple(residues)),
        segments=both["segments"],
        max_queries=bundle.manifest.max_queries,
        context_length=bundle.manifest.context_length,
        phase_mask=both["phase_mask"],
        head=both["head"],
    )


def megabytes(field: str) -> float:
    """A field of /proc/self/status, in MB of 10**6 bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise OSError(f"/proc/self/status has no {field}")


def main() -> None:
    job = json.load(sys.stdin)
    requests = {
        "engine": engine_request,
        "lean": engine_request,
        "phases": every_phase_request,
        "layouts": every_phase_request,
    }
    tokens, loaded = requests.get(job["form"], plain_request)(job)
    print(
        json.dumps(
            {
                "tokens": tokens,
                "peak_mb": megabytes("VmHWM"),
                "held_mb": megabytes("VmRSS"),
                "own_mb": megabytes("RssAnon"),
            }
        )
    )
    del loaded


if __name__ == "__main__":
    main()
