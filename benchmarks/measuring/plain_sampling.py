"""Sampling as a textbook writes it: one position from its logits and everything before it, nothing kept in between.

Independent of qbpass.runtime.sampling, whose documentation it follows. Whole sorts, all counts anew, every step on the
whole vocabulary: slow and plain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

#: Scores of a position changed by everything before it, (tokens so far, scores) to scores.
Change = Callable[[Sequence[int], np.ndarray], np.ndarray]


def plain_choice(
    logits: np.ndarray,
    prompt: Sequence[int],
    generated: Sequence[int],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    bias: Mapping[int, float] | None = None,
    min_tokens: int = 0,
    stop_ids: frozenset[int] = frozenset(),
    seed: int = 0,
    changes: Sequence[Change] = (),
    allowed: Callable[[Sequence[int]], np.ndarray] | None = None,
) -> int:
    """allowed: generated tokens to (vocabulary,) bool."""
    one = np.float32
    scores = np.array(logits, one)
    for token, value in (bias or {}).items():
        scores[token] += one(value)
    if repetition_penalty != 1:
        for token in {*prompt, *generated}:
            negative = scores[token] < 0
            scores[token] = (
                scores[token] * one(repetition_penalty) if negative else scores[token] / one(repetition_penalty)
            )
    for token, count in Counter(generated).items():
        scores[token] = scores[token] - one(frequency_penalty) * one(count)
        scores[token] = scores[token] - one(presence_penalty)
    for change in changes:
        scores = change([*prompt, *generated], scores)
    if len(generated) < min_tokens:
        for token in stop_ids:
            scores[token] = -np.inf
    if allowed is not None:
        scores = np.where(allowed(generated), scores, one(-np.inf))
    if temperature == 0:
        return int(np.argmax(scores))
    logs = scores.astype(np.float64) / temperature
    share = np.exp(logs - logs.max())
    if top_k:
        kth = np.sort(scores)[::-1][min(top_k, len(scores)) - 1]
        share[scores < kth] = 0
    share /= share.sum()
    if top_p < 1:
        order = np.lexsort((np.arange(len(share)), -share))  # falling shares, equal ones by rising id
        total = np.cumsum(share[order])
        needed = int(np.argmax(total >= top_p)) + 1 if (total >= top_p).any() else len(order)
        share[order[needed:]] = 0
        share /= share.sum()
    share[share < min_p * share.max()] = 0
    position = len(prompt) + len(generated)
    philox = np.random.Philox(key=seed, counter=[0, position, 0, 0])
    uniform = np.random.Generator(philox).random(len(share))
    candidates = np.flatnonzero(share)
    return int(candidates[np.argmin(-np.log(uniform[candidates]) / share[candidates])])


def plain_loop(
    logits_behind: Callable[[Sequence[int]], np.ndarray],
    prompt: Sequence[int],
    limit: int,
    choice: Callable[[np.ndarray, Sequence[int], Sequence[int]], int],
    stop_ids: frozenset[int] = frozenset(),
) -> list[int]:
    """Serial decoding: (logits, prompt, generated) to a token, until a stop token or `limit`."""
    generated: list[int] = []
    while len(generated) < limit and not (generated and generated[-1] in stop_ids):
        generated.append(choice(logits_behind([*prompt, *generated]), prompt, generated))
    return generated
