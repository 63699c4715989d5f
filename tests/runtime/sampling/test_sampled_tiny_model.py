"""On a real graph: n-gram drafts on the rewritten decoder and none on the reference give the same sampled tokens."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sampled_requests import BYTES, END, NoRepeats, Watermark

from qbpass.models.session import SessionSpec
from qbpass.models.tokenizer import TextCodec
from qbpass.rewrites.bundle import Bundle
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.drafting.ngram import NgramDrafter
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.sampling.grammar import Grammar, Vocabulary, compiled
from qbpass.runtime.sampling.settings import Sampling
from qbpass.runtime.serial_target import SerialTarget

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from measuring.plain_sampling import plain_choice, plain_loop

PROMPTS = tuple(tuple(prompt.encode()) for prompt in ("one two one two one", "abcabcabcabc", "aaaaaaaa", "x"))
ENDS = frozenset({END})
#: What the tiny model draws at a temperature of 1 hardly repeats, and nothing would be proposed.
LOW = 0.15
CASES: dict[str, dict[str, Any]] = {
    "low temperature": {"temperature": LOW},
    "filters": {"temperature": 0.4, "top_k": 30, "top_p": 0.9, "min_p": 0.01},
    "penalties": {"temperature": LOW, "repetition_penalty": 1.05, "presence_penalty": 0.1, "frequency_penalty": 0.05},
    "min_tokens and bias": {"temperature": LOW, "bias": {END: 2.0}, "min_tokens": 6, "stop_ids": ENDS},
    "watermark": {"temperature": LOW, "processors": (Watermark(BYTES, 0.3),)},
    "no repeats": {"temperature": 0.0, "processors": (NoRepeats(),)},
}


@pytest.fixture(scope="module")
def targets(tiny_bundle: Bundle) -> tuple[SerialTarget, BlockTarget]:
    spec = SessionSpec(threads=2)
    return SerialTarget.from_frozen(tiny_bundle.reference, spec), BlockTarget.from_bundle(tiny_bundle, spec)


def endpoints(targets: tuple[SerialTarget, BlockTarget], settings: list[Sampling]) -> tuple[list[Any], list[Any], int]:
    """Of every setting and prompt: without speculation on the reference, with it on the rewritten decoder; how many
    proposals were accepted.
    """
    serial, block = Engine(targets[0]), Engine(targets[1], NgramDrafter())
    off, on, accepted = [], [], 0
    for choosing in settings:
        for prompt in PROMPTS:
            request = Request(prompt, 24, ENDS, choosing=choosing)
            off.append(serial.generate(request)[0])
            endpoint, trace = block.generate(request)
            on.append(endpoint)
            accepted += trace.accepted
    return off, on, accepted


@pytest.mark.parametrize("case", CASES)
def test_speculation_on_a_rewritten_decoder_changes_no_sampled_output(
    case: str, targets: tuple[SerialTarget, BlockTarget]
) -> None:
    off, on, accepted = endpoints(targets, [Sampling(**CASES[case], seed=seed) for seed in range(3)])
    assert on == off
    assert accepted > 0 or case == "no repeats"


def test_nor_under_a_json_schema(tiny_bundle: Bundle, targets: tuple[SerialTarget, BlockTarget]) -> None:
    pytest.importorskip("llguidance")
    codec = TextCodec(tiny_bundle.reference.tokenizer_files)
    schema = '{"type": "array", "items": {"enum": ["one", "two"]}, "minItems": 2, "maxItems": 4}'
    constraint = compiled(Grammar("json_schema", schema), Vocabulary.of(codec.definition, BYTES, ENDS))
    off, on, accepted = endpoints(targets, [Sampling(0.4, seed=seed, grammar=constraint) for seed in range(3)])
    assert on == off
    assert accepted > 0


def test_the_output_is_an_independent_loops_over_the_references_logits(
    targets: tuple[SerialTarget, BlockTarget],
) -> None:
    serial, block = targets
    settings = {**CASES["filters"], **CASES["penalties"], "temperature": 0.3, "seed": 11}

    def logits_behind(tokens: Sequence[int]) -> np.ndarray:
        if len(tokens) == len(prompt):
            serial.start(len(prompt) + 24)
            return serial.prefill(tokens)[-1]
        return serial.verify(tokens[-1:])[-1]

    for prompt in PROMPTS:
        wanted = plain_loop(logits_behind, prompt, 24, lambda *given: plain_choice(*given, **settings), ENDS)
        request = Request(prompt, 24, ENDS, choosing=Sampling(**settings))
        assert list(Engine(block, NgramDrafter()).generate(request)[0].token_ids) == wanted
