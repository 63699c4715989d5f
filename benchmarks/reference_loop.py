"""Serial decoding as qbpass runs it (R) against the loops a user would write over the same frozen graph.

numpy: `session.run` with numpy arrays in and out. bound: present outputs of one call passed on as OrtValues.
They share a session with ONNX Runtime's default options, R has its own. Tokens and rows of logits are compared,
byte for byte.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from measuring.claims import Claim, answer, show_claims
from measuring.script import add_request, parser, run, spec_of
from measuring.user_loop import bound_loop, numpy_loop, plain_session

from qbpass.admission.probes.interleaved import interleave
from qbpass.evidence.forced_replay import serial_rows
from qbpass.rewrites.bundle import check_recipe, open_bundle
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.serial_target import SerialTarget
from qbpass.screen import Steps, table

Loop = Callable[[], tuple[list[int], list[np.ndarray]]]


def measure(options: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    spec, bundle = spec_of(options), open_bundle(options.bundle)
    check_recipe(bundle, spec)
    steps.text("loading R and the user's session")
    target = SerialTarget.from_frozen(bundle.reference, spec)
    graph, folder = bundle.weights.in_one_folder(bundle.reference.path.read_bytes())
    session = plain_session(graph, options.threads, frozen=True, folder=folder)
    prompt = np.random.default_rng(0).integers(0, target.vocab_size, options.prompt).tolist()
    contract, tokens = bundle.reference.contract, options.tokens
    loops: dict[str, Loop] = {
        "numpy": partial(numpy_loop, session, contract, prompt, tokens),
        "bound": partial(bound_loop, session, contract, prompt, tokens),
    }
    engine, request = Engine(target), Request(tuple(prompt), tokens)
    steps.text("comparing bytes")
    reference = engine.generate(request)[0].token_ids
    # The last token is never fed, so its row exists in no loop.
    rows = serial_rows(target, prompt, reference[:-1]).tobytes()
    equal = {name: _same(loop, reference, rows) for name, loop in loops.items()}
    times = interleave(
        {"R": partial(engine.generate, request), **loops}, options.rounds, warmups=1, progress=steps.count
    )
    return {
        "prompt": options.prompt,
        "tokens": tokens,
        "ms_per_token": {name: times.median_ms(name) / tokens for name in times.seconds},
        "equal_to_R": equal,
        "claims": [
            Claim(f"R / {name}", times.ratio("R", name) if same else None, at_most=1.10) for name, same in equal.items()
        ],
    }


def _same(loop: Loop, tokens: tuple[int, ...], rows: bytes) -> bool:
    found, logits = loop()
    return tuple(found) == tokens and np.concatenate(logits[1:]).tobytes() == rows


def show(results: dict[str, Any]) -> None:
    equal = {"R": True, **results["equal_to_R"]}
    rows = [[name, f"{ms:.2f}", answer(equal[name])] for name, ms in results["ms_per_token"].items()]
    title = f"{results['tokens']} tokens behind a prompt of {results['prompt']}"
    table([("loop", False), ("median ms/token", True), ("tokens and rows = R", False)], rows, title)
    show_claims(results["claims"])


def options() -> argparse.Namespace:
    made = parser(__doc__, rounds=7)
    add_request(made, prompt=32, tokens=64)
    return made.parse_args()


if __name__ == "__main__":
    run(measure, show, options())
