"""Long requests and many requests: output equal to serial decoding's, memory that stays where it was.

Three parts: one request of many generated tokens, one behind a long prompt, and a row of short requests of changing
lengths, every tenth of which is cancelled, with the process's resident memory read between them. Tokens that would end
a generation do not end these. The prompts are those qbpass is shipped with, one after another.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Sequence
from importlib.resources import as_file, files
from itertools import cycle, islice
from typing import Any

import numpy as np
from measuring.claims import ABSENT, answer
from measuring.resident import megabytes
from measuring.script import parser, positive, run, spec_of

from qbpass.evidence.prompts import read_prompts
from qbpass.models.errors import QbpassError
from qbpass.models.tokenizer import TextCodec
from qbpass.rewrites.bundle import Bundle, check_recipe, open_bundle
from qbpass.runtime.drafting.ngram import NgramDrafter
from qbpass.runtime.endpoint import Endpoint, first_difference
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.open_target import open_target
from qbpass.runtime.serial_target import SerialTarget
from qbpass.screen import Steps, say, table

WARM_UP = 25  # requests before memory is read: buffers grow to the longest request, allocators to their arenas
TOLERANCE = 0.02
SHORTEST, LONGEST, NEW_TOKENS = 8, 400, 12


def shipped_tokens(bundle: Bundle) -> list[int]:
    """Of the prompts qbpass is shipped with; seeded random ones for a model without a tokenizer."""
    tokenizer = bundle.reference.tokenizer_files
    if "tokenizer.json" not in tokenizer:
        vocabulary = bundle.manifest.interface.vocab_size
        return np.random.default_rng(0).integers(0, vocabulary, 500).tolist()
    with as_file(files("qbpass") / "data" / "demo_prompts.jsonl") as path:
        return [token for prompt in read_prompts(path, TextCodec(tokenizer)) for token in prompt.token_ids]


def timed(engine: Engine, request: Request) -> tuple[Endpoint, float]:
    start = time.perf_counter()
    endpoint, _ = engine.generate(request)
    return endpoint, time.perf_counter() - start


def long_request(name: str, engines: dict[str, Engine], request: Request, steps: Steps) -> dict[str, Any]:
    """Serial and speculative, once each."""
    found = {}
    for arm, engine in engines.items():
        steps.text(f"{name}: {arm}")
        found[arm] = timed(engine, request)
    (wanted, serial), (got, seconds) = found["R"], found["C"]
    return {
        "request": name,
        "prompt": len(request.prompt),
        "generated": wanted.length,
        "equal": got == wanted,
        "first_difference": first_difference(wanted.token_ids, got.token_ids),
        "ratio_to_R": serial / seconds if got == wanted else None,
    }


def many_requests(engine: Engine, tokens: Sequence[int], count: int, steps: Steps) -> dict[str, Any]:
    """Resident megabytes after every request, from the WARM_UP-th on."""
    chance = random.Random(0)
    # The longest first: a request never finds less room than one before it.
    lengths = [LONGEST, *(chance.randint(SHORTEST, LONGEST) for _ in range(WARM_UP + count - 1))]
    held = []
    for turn, length in enumerate(lengths):
        steps.count("requests", turn, len(lengths))
        begin = chance.randrange(len(tokens))
        prompt = tuple(islice(cycle(tokens), begin, begin + length))
        cancel = turn % 10 == 9
        endpoint, trace = engine.generate(Request(prompt, NEW_TOKENS), cancelled=lambda now=cancel: now)
        if (endpoint.stop_reason == "cancelled") != cancel:
            raise QbpassError(f"request {turn} ended by {endpoint.stop_reason}")
        trace.check(endpoint.length)
        if turn >= WARM_UP:
            gc.collect()
            held.append(megabytes("VmRSS"))
    settled = statistics.median(held[: max(len(held) // 10, 1)])
    return {
        "requests": count,
        "megabytes": {"settled": settled, "least": min(held), "most": max(held), "last": held[-1]},
        "largest_change": max(abs(each / settled - 1) for each in held),
    }


def measure(options: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    spec, bundle = spec_of(options), open_bundle(options.bundle)
    check_recipe(bundle, spec)
    steps.text("loading the reference and the bundle")
    engines = {
        "R": Engine(SerialTarget.from_bundle(bundle, spec)),
        "C": Engine(open_target(bundle, spec), NgramDrafter()),
    }
    tokens = shipped_tokens(bundle)
    prompt = tuple(islice(cycle(tokens), options.prompt))
    rows = [
        long_request("many tokens", engines, Request(tuple(tokens[:64]), options.generate, k=options.k), steps),
        long_request("long prompt", engines, Request(prompt, 64, k=options.k), steps),
    ]
    del engines["R"]  # its cache grows and shrinks with every request, and is not what is watched
    return {"long": rows, "many": many_requests(engines["C"], tokens, options.requests, steps)}


def show(results: dict[str, Any]) -> None:
    columns = [("request", False), ("prompt", True), ("generated", True), ("endpoint = R", False), ("ratio to R", True)]
    rows = [
        [
            entry["request"],
            str(entry["prompt"]),
            str(entry["generated"]),
            answer(entry["equal"]),
            ABSENT if entry["ratio_to_R"] is None else f"{entry['ratio_to_R']:.2f}",
        ]
        for entry in results["long"]
    ]
    table(columns, rows, "long requests")
    many, held = results["many"], results["many"]["megabytes"]
    say(
        f"{many['requests']} requests: {held['settled']:.0f} MB settled, {held['least']:.0f} to {held['most']:.0f}, "
        f"last {held['last']:.0f}; largest change {many['largest_change']:.1%} (should be at most {TOLERANCE:.0%})"
    )


def options() -> argparse.Namespace:
    made = parser(__doc__, rounds=1)
    for name, default, what in (
        ("--generate", 2000, "tokens of the request of many tokens"),
        ("--prompt", 3500, "tokens of the long prompt"),
        ("--requests", 500, "short requests whose memory is watched"),
        ("-k", 3, "the most tokens proposed in a round"),
    ):
        made.add_argument(name, type=positive, default=default, metavar="N", help=f"{what} (default: %(default)s)")
    return made.parse_args()


if __name__ == "__main__":
    run(measure, show, options())
