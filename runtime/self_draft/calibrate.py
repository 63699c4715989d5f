"""What a self draft costs and how far it is right, measured on the bundle's own target and its own words.

The target continues a few prompts greedily. Its cache then holds every row of them, and a draft is asked from the last
position to the first what comes next: what it writes lies behind the position it is asked at, so the rows that the
earlier positions read are always the target's own. No call of the target is needed for that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from qbpass.models.tokenizer import TextCodec
from qbpass.rewrites.bundle import Bundle
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.choosing import GREEDY
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.self_draft.drafter import SelfDrafter

#: Of several kinds of request, in no way special.
TEXTS = (
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "Summarize in three sentences: The printing press spread through Europe within fifty years. Books that had been "
    "copied by hand for months could now be made in days, and their price fell by four fifths. Cities with a press "
    "grew faster than those without one, and so did their universities.",
    "Write a Python function that returns the n-th Fibonacci number, and explain its running time.",
    "A train travels 120 miles in 2 hours and then 90 miles in 1.5 hours. What is its average speed?",
)
TOKENS, STRIDE, REPEATS, WARM_UP = 48, 3, 9, 2
RANDOM_PROMPT, SEED = 32, 0


@dataclass(frozen=True)
class Continuation:
    """A prompt and what the target said behind it."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


def continuations(bundle: Bundle, target: BlockTarget) -> list[Continuation]:
    """Of TEXTS; of random tokens where the bundle has no tokenizer."""
    engine, stops = Engine(target), frozenset(bundle.manifest.eos_token_ids)
    found = []
    for prompt in _prompts(bundle, target):
        room = (target.context_length or 1 << 31) - len(prompt)
        if room > 1:
            endpoint, _ = engine.generate(Request(prompt, min(TOKENS, room), stops, k=0))
            found.append(Continuation(prompt, endpoint.token_ids))
    return found


def _prompts(bundle: Bundle, target: BlockTarget) -> Iterator[tuple[int, ...]]:
    files = bundle.reference.tokenizer_files
    if "tokenizer.json" in files:
        codec = TextCodec(files)
        yield from (tuple(codec.encode_prompt(text)) for text in TEXTS)
        return
    draw = np.random.default_rng(SEED)
    for _ in TEXTS:
        yield tuple(draw.integers(0, target.vocab_size, RANDOM_PROMPT).tolist())


def survival(drafter: SelfDrafter, said: Sequence[Continuation], proposals: int) -> list[float]:
    """Entry i: the share of positions behind which the first i + 1 proposals were what the target said."""
    right = np.zeros(proposals)
    positions = 0
    for each in said:
        _refill(drafter.target, each)
        drafter.start(each.prompt, drafter.target.length + proposals)
        for known in range(len(each.tokens) - proposals, 0, -STRIDE):
            wanted = each.tokens[known : known + proposals]
            drafter.target.rollback(len(each.prompt) + known - 1)
            drafter.extend(each.tokens[known - 1 : known])
            got = drafter.propose(proposals, GREEDY.fork).tokens
            agreed = [a == b for a, b in zip(got, wanted, strict=False)]
            right += np.cumprod([*agreed, *[False] * (proposals - len(agreed))])
            positions += 1
    return [float(share) for share in right / max(positions, 1)]


def _refill(target: BlockTarget, said: Continuation) -> None:
    """The target's cache as it was behind the continuation."""
    rows, width = (*said.prompt, *said.tokens), target.max_queries
    target.start(len(rows) + width)
    target.prefill(said.prompt)
    for start in range(len(said.prompt), len(rows), width):
        target.verify(rows[start : start + width])


def call_costs(target: BlockTarget, said: Continuation) -> list[float]:
    """Entry q - 1: the target's call of q rows over its call of one."""
    _refill(target, said)
    rows, past = (*said.prompt, *said.tokens), target.length

    def call(width: int) -> Callable[[], None]:
        def run() -> None:
            target.verify(rows[:width])
            target.rollback(past)

        return run

    seconds = interleaved([call(width) for width in range(1, target.max_queries + 1)])
    return [each / seconds[0] for each in seconds]


def step_cost(drafter: SelfDrafter, said: Continuation) -> float:
    """A proposal's time over the target's call of one row."""
    target = drafter.target
    _refill(target, said)
    past = target.length
    drafter.start(said.prompt, past + 1)
    drafter.extend(said.tokens[-1:])

    def call() -> None:
        target.verify(said.tokens[-1:])
        target.rollback(past)

    proposal, row = interleaved([lambda: drafter.propose(1, GREEDY.fork), call])
    return proposal / row


def interleaved(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Median seconds of each, a slow minute of the machine falling on all of them."""
    taken: list[list[float]] = [[] for _ in calls]
    for turn in range(WARM_UP + REPEATS):
        for seconds, run in zip(taken, calls, strict=True):
            before = time.perf_counter()
            run()
            if turn >= WARM_UP:
                seconds.append(time.perf_counter() - before)
    return [statistics.median(each) for each in taken]
