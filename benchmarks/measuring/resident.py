"""One short request in this process, and the memory it took. Run by memory.py, in a fresh process for each form.

Reads a JSON object on stdin: form (plain | frozen | engine), path (a model, or a bundle's folder), threads,
tokens (how many to generate), prompt, contract (the decoder's). Writes another: tokens, peak_mb (VmHWM),
held_mb (VmRSS, all still loaded). The forms without qbpass import neither onnx nor any part of qbpass but the
contract's type.
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
    session = plain_session(Path(job["path"]), job["threads"], frozen=job["form"] == "frozen")
    return bound_loop(session, contract, job["prompt"], job["tokens"])[0], session


def engine_request(job: dict[str, Any]) -> tuple[list[int], Any]:
    from qbpass.models.session import SessionSpec
    from qbpass.rewrites.bundle import check_recipe, open_bundle
    from qbpass.runtime.block_target import BlockTarget
    from qbpass.runtime.engine import Engine, Request
    from qbpass.runtime.ngram import NgramDrafter

    spec, bundle = SessionSpec("cpu", job["threads"]), open_bundle(Path(job["path"]))
    check_recipe(bundle, spec)
    engine = Engine(BlockTarget.from_bundle(bundle, spec), NgramDrafter())
    return list(engine.generate(Request(tuple(job["prompt"]), job["tokens"]))[0].token_ids), engine


def megabytes(field: str) -> float:
    """A field of /proc/self/status, in MB of 10**6 bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise OSError(f"/proc/self/status has no {field}")


def main() -> None:
    job = json.load(sys.stdin)
    tokens, loaded = (engine_request if job["form"] == "engine" else plain_request)(job)
    print(json.dumps({"tokens": tokens, "peak_mb": megabytes("VmHWM"), "held_mb": megabytes("VmRSS")}))
    del loaded


if __name__ == "__main__":
    main()
