"""Sampling with speculation against sampling without, and against a plain loop in NumPy, token for token.

Every seed, setting and prompt is generated serially on the reference (off), with speculation on the bundle (on), and
chosen once more from the reference's own rows of logits by measuring/plain_sampling.py, which shares no code with
qbpass's sampling. Proposals are n-grams of the text; where there are none, the serial output with one token in three
made wrong, so that blocks of every length are accepted and rejected.

A prompt is evaluated once and its rows of the KV cache are kept: what is generated lies behind them and changes none.
The first seed of every setting and prompt is generated from an empty cache, too, and must be the same.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from measuring.plain_sampling import plain_choice
from measuring.script import parser, positive, run, spec_of

from qbpass.models.session import SessionSpec
from qbpass.models.tokenizer import TextCodec
from qbpass.rewrites.bundle import Bundle, check_recipe, open_bundle
from qbpass.runtime.choosing import Chooser
from qbpass.runtime.drafter import Drafter, NoDrafter, Proposal
from qbpass.runtime.drafting.ngram import NgramDrafter
from qbpass.runtime.endpoint import Endpoint, first_difference
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.open_target import open_target
from qbpass.runtime.rewinding_target import RewindingTarget
from qbpass.runtime.sampling.settings import Sampling
from qbpass.runtime.serial_target import SerialTarget
from qbpass.screen import Steps, say, table

PROMPTS = (
    "Repeat this sentence three times: the sea is blue.",
    "Write a short poem about a cat.",
    "List the numbers from one to ten.",
    "Why is the sky blue?",
)
SETTINGS: dict[str, dict[str, Any]] = {
    "T 0.7, top-p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "T 1.0, top-k 50, min-p 0.02, repetition 1.1": {
        "temperature": 1.0,
        "top_k": 50,
        "min_p": 0.02,
        "repetition_penalty": 1.1,
    },
    "T 1.3, presence 0.5, frequency 0.3, bias, min-tokens": {
        "temperature": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "min_tokens": 6,
    },
}
#: Of the third setting, so that min-tokens has something to ban.
END_BIAS = 4.0
WRONG = 1 / 3


class KeptPrompt:
    """A target that evaluates a prompt once: asked for the same again, it goes back to the rows it has."""

    def __init__(self, target: Any):
        self._target = target
        self._prompt: tuple[int, ...] = ()
        self._rows = self._reserved = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def start(self, rows: int) -> None:
        self._rows = rows

    def forget(self) -> None:
        """Evaluate the next prompt whatever it is."""
        self._prompt = ()

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        if tuple(tokens) == self._prompt and self._rows <= self._reserved:
            self._target.rollback(len(tokens))
            return self._logits.copy()
        self._target.start(self._rows)
        self._logits: np.ndarray = self._target.prefill(tokens).copy()
        self._prompt, self._reserved = tuple(tokens), self._rows
        if isinstance(self._target, RewindingTarget):
            self._target.keep()
        return self._logits.copy()

    def rollback(self, length: int) -> None:
        if length != self._target.length:  # a serial target only knows the lengths that it kept
            self._target.rollback(length)


class Recorded(KeptPrompt):
    """And writes down every row that serial decoding chose from."""

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        logits = super().prefill(tokens)
        self.rows = [logits[-1].copy()]
        return logits

    def verify(self, tokens: Sequence[int]) -> np.ndarray:
        logits: np.ndarray = self._target.verify(tokens)
        self.rows.append(logits[-1].copy())
        return logits


class NgramsOrAlmostRight:
    """N-grams, and where they know nothing `output` with some tokens made wrong."""

    def __init__(self, output: Sequence[int], vocab_size: int, seed: int):
        self._ngrams = NgramDrafter()
        self._output, self._vocab_size = output, vocab_size
        self._random = random.Random(seed)
        self._generated = 0

    def start(self, tokens: Sequence[int], rows: int) -> None:
        self._ngrams.start(tokens, rows)

    def extend(self, tokens: Sequence[int]) -> None:
        self._ngrams.extend(tokens)
        self._generated += len(tokens)

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        found = self._ngrams.propose(limit, fork)
        if found.tokens:
            return found
        tokens = self._output[self._generated : self._generated + limit]
        return Proposal(tuple((t + (self._random.random() < WRONG)) % self._vocab_size for t in tokens))


def serial_target(bundle: Bundle, spec: SessionSpec) -> RewindingTarget:
    return RewindingTarget.on_session_of(SerialTarget.from_bundle(bundle, spec), bundle, spec, 1)


def prompts(bundle: Bundle) -> list[tuple[str, tuple[int, ...]]]:
    """Texts by the model's tokenizer, or random tokens where it has none."""
    files = bundle.reference.tokenizer_files
    if "tokenizer.json" in files:
        codec = TextCodec(files)
        return [(text, tuple(codec.encode_prompt(text))) for text in PROMPTS]
    draw, vocab_size = np.random.default_rng(0), bundle.manifest.interface.vocab_size
    return [(f"random {n}", tuple(draw.integers(0, vocab_size, 24).tolist())) for n in range(len(PROMPTS))]


class Compared:
    """Counts of one setting and prompt."""

    def __init__(self) -> None:
        self.outputs = self.on_equal = self.plain_equal = 0
        self.tokens = self.proposed = self.accepted = self.rejected = self.stopped = 0
        self.differences: list[dict[str, Any]] = []

    def add(self, seed: int, off: Endpoint, on: Endpoint, plain: list[int]) -> None:
        self.outputs += 1
        self.tokens += off.length
        self.stopped += off.end_of_generation
        self.on_equal += on == off
        self.plain_equal += tuple(plain) == off.token_ids
        for name, tokens, equal in (("on", on.token_ids, on == off), ("plain", plain, tuple(plain) == off.token_ids)):
            if not equal:
                at = first_difference(off.token_ids, tokens)
                self.differences.append({"seed": seed, "against": name, "first_difference": at})


def plain_tokens(
    rows: Sequence[np.ndarray], prompt: Sequence[int], settings: dict[str, Any], off: Endpoint
) -> list[int]:
    """What the plain loop chooses from the rows, up to its first token that serial decoding did not choose: behind it
    the rows are of another text.
    """
    chosen: list[int] = []
    for row, token in zip(rows, off.token_ids, strict=True):
        chosen.append(plain_choice(row, prompt, chosen, **settings))
        if chosen[-1] != token:
            break
    return chosen


def measure(options: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    spec, bundle = spec_of(options), open_bundle(options.bundle)
    check_recipe(bundle, spec)
    steps.text("loading the reference and the bundle")
    off_target, on_target = Recorded(serial_target(bundle, spec)), KeptPrompt(open_target(bundle, spec))
    vocab_size, ends = bundle.manifest.interface.vocab_size, frozenset(bundle.manifest.eos_token_ids)
    asked = prompts(bundle)
    cells: list[dict[str, Any]] = []
    fresh_equal = 0
    started, done, total = time.perf_counter(), 0, options.seeds * len(SETTINGS) * len(asked)
    for text, prompt in asked:
        for name, chosen in SETTINGS.items():
            fixed = {**chosen, "stop_ids": ends}
            if "min_tokens" in chosen:
                fixed["bias"] = dict.fromkeys(ends, END_BIAS)
            counts = Compared()
            for seed in range(options.seeds):
                settings = {**fixed, "seed": seed}
                request = Request(prompt, options.tokens, ends, options.k, Sampling(**settings))
                off = Engine(off_target, NoDrafter()).generate(request)[0]
                plain = plain_tokens(off_target.rows, prompt, settings, off)
                drafter: Drafter = NgramsOrAlmostRight(off.token_ids, vocab_size, seed)
                on, trace = Engine(on_target, drafter).generate(request)
                counts.add(seed, off, on, plain)
                counts.proposed += trace.proposed
                counts.accepted += trace.accepted
                counts.rejected += trace.rejected
                if seed == 0:
                    off_target.forget()
                    on_target.forget()
                    again = NgramsOrAlmostRight(off.token_ids, vocab_size, seed)
                    whole = Engine(off_target, NoDrafter()), Engine(on_target, again)
                    fresh_equal += all(engine.generate(request)[0] == off for engine in whole)
                done += 1
                steps.count("outputs", done, total)
            cells.append({"prompt": text, "prompt_tokens": len(prompt), "setting": name, **vars(counts)})
    return {
        "seeds": options.seeds,
        "tokens": options.tokens,
        "k": options.k,
        "outputs": total,
        "on_equals_off": sum(cell["on_equal"] for cell in cells),
        "plain_equals_off": sum(cell["plain_equal"] for cell in cells),
        "from_an_empty_cache": {"tried": len(cells), "equal": fresh_equal},
        "seconds": time.perf_counter() - started,
        "cells": cells,
    }


def show(results: dict[str, Any]) -> None:
    columns = [("prompt", False), ("setting", False), ("on = off", True), ("NumPy = off", True), ("tokens", True)]
    columns += [("ended", True), ("accepted", True), ("rejected", True)]
    rows = [
        [
            cell["prompt"][:32],
            cell["setting"],
            f"{cell['on_equal']}/{cell['outputs']}",
            f"{cell['plain_equal']}/{cell['outputs']}",
            *(str(cell[name]) for name in ("tokens", "stopped", "accepted", "rejected")),
        ]
        for cell in results["cells"]
    ]
    table(columns, rows, f"{results['seeds']} seeds, up to {results['tokens']} tokens, up to {results['k']} proposed")
    fresh = results["from_an_empty_cache"]
    say(
        f"{results['on_equals_off']} of {results['outputs']} outputs with speculation equal those without, "
        f"{results['plain_equals_off']} of {results['outputs']} the plain loop's; "
        f"{fresh['equal']} of {fresh['tried']} from an empty cache, too ({results['seconds']:.0f} s)"
    )


def options() -> argparse.Namespace:
    made = parser(__doc__, rounds=1)
    made.add_argument("--seeds", type=positive, default=200, metavar="N", help="(default: %(default)s)")
    made.add_argument("--tokens", type=positive, default=16, metavar="N", help="generated (default: %(default)s)")
    made.add_argument("-k", type=positive, default=3, metavar="N", help="proposed in a round (default: %(default)s)")
    return made.parse_args()


def all_equal(results: dict[str, Any]) -> bool:
    fresh = results["from_an_empty_cache"]
    equal = results["on_equals_off"] == results["plain_equals_off"] == results["outputs"]
    return bool(equal and fresh["equal"] == fresh["tried"])


if __name__ == "__main__":
    found: dict[str, Any] = {}
    run(lambda given, steps: found.update(measure(given, steps)) or found, show, options())
    sys.exit(0 if all_equal(found) else 1)
