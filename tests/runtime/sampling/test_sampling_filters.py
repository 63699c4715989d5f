"""Each filter keeps what its definition says, and what transformers' keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from qbpass.runtime.sampling import filters
from qbpass.runtime.sampling.filters import above_min_p, at_least_kth, nucleus
from qbpass.runtime.sampling.penalties import TokenCounts

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers.generation.logits_process")

#: Many ties: whole and half numbers; and lengths on both sides of the blocks that top-k looks at first.
ELEMENTS = st.integers(-12, 12).map(lambda x: x / 2) | st.floats(-9, 9, width=32)
SCORES = st.integers(1, 300).flatmap(lambda n: arrays(np.float32, n, elements=ELEMENTS))


def weights_of(scores: np.ndarray) -> np.ndarray:
    return np.exp(scores.astype(np.float64) - scores.max())


def kept_by(warper: Any, scores: np.ndarray) -> list[int]:
    kept = warper(None, torch.tensor(scores[None].astype(np.float64)))[0]
    return torch.nonzero(kept > -torch.inf)[:, 0].tolist()


@given(scores=SCORES, k=st.integers(1, 320))
def test_top_k_keeps_every_score_that_is_no_less_than_the_kth(scores: np.ndarray, k: int) -> None:
    kth = sorted(scores.tolist(), reverse=True)[min(k, len(scores)) - 1]
    wanted = [token for token, score in enumerate(scores.tolist()) if score >= kth]
    assert at_least_kth(scores, k).tolist() == wanted == kept_by(hf.TopKLogitsWarper(k), scores)


def test_banned_scores_are_kept_only_where_k_reaches_them() -> None:
    scores = np.full(200, -np.inf, np.float32)
    scores[[3, 150]] = 1, 2
    assert at_least_kth(scores, 2).tolist() == [3, 150]
    assert at_least_kth(scores, 3).tolist() == list(range(200))


@given(scores=SCORES, top_p=st.floats(0.001, 0.999))
def test_top_p_keeps_the_fewest_largest_weights_whose_share_is_enough(scores: np.ndarray, top_p: float) -> None:
    weights = weights_of(scores)
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    total, wanted = 0.0, []
    for token in order:
        wanted.append(token)
        total += weights[token]
        assume(abs(total / weights.sum() - top_p) > 1e-9)  # at the very border rounding decides
        if total >= top_p * weights.sum():
            break
    assert nucleus(weights, top_p).tolist() == sorted(wanted)


@given(seed=st.integers(0, 2**16), count=st.integers(1, 300), top_p=st.floats(0.001, 0.999))
def test_top_p_is_transformers_where_no_weights_are_equal(seed: int, count: int, top_p: float) -> None:
    scores = np.random.default_rng(seed).normal(0, 3, count).astype(np.float32)
    weights = weights_of(scores)
    shares = np.cumsum(np.sort(weights)[::-1]) / weights.sum()
    assume(len(set(scores.tolist())) == count and np.abs(shares - top_p).min() > 1e-9)
    assert nucleus(weights, top_p).tolist() == kept_by(hf.TopPLogitsWarper(top_p), scores)


@given(top_p=st.floats(0.001, 0.999), seed=st.integers(0, 2**16), spread=st.sampled_from([0.1, 1.0, 4.0, 30.0]))
def test_top_p_keeps_the_same_whether_it_sorts_a_part_or_the_whole(top_p: float, seed: int, spread: float) -> None:
    weights = weights_of(np.random.default_rng(seed).normal(0, spread, 2000).astype(np.float32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filters, "_CUTS", ())
        whole = nucleus(weights, top_p)
    assert nucleus(weights, top_p).tolist() == whole.tolist()


def test_of_equal_weights_top_p_keeps_the_lower_ids() -> None:
    assert nucleus(np.ones(10), 0.35).tolist() == [0, 1, 2, 3]
    assert nucleus(np.ones(4), 0.5).tolist() == [0, 1]  # a share that is just reached is enough


@given(scores=SCORES, min_p=st.floats(0.001, 0.999))
def test_min_p_keeps_what_is_not_too_far_below_the_likeliest(scores: np.ndarray, min_p: float) -> None:
    weights = weights_of(scores)
    assume(np.abs(weights - min_p).min() > 1e-9)
    kept = above_min_p(weights, min_p).tolist()
    assert kept == [token for token, weight in enumerate(weights.tolist()) if weight >= min_p * max(weights)]
    assert kept == kept_by(hf.MinPLogitsWarper(min_p), scores)


@given(scores=SCORES, penalty=st.floats(0.01, 100), seed=st.integers(0, 2**16))
def test_the_repetition_penalty_is_transformers_byte_for_byte(scores: np.ndarray, penalty: float, seed: int) -> None:
    tokens = np.random.default_rng(seed).integers(0, len(scores), 9).tolist()
    counts = TokenCounts(tokens[:5])
    for token in tokens[5:]:
        counts.add(token)
    wanted = hf.RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([tokens]), torch.tensor(scores[None])).numpy()[0]
    mine = scores.copy()
    counts.penalize_repetition(mine, penalty)
    assert mine.tobytes() == wanted.tobytes()


@given(scores=SCORES, presence=st.floats(-2, 2), frequency=st.floats(-2, 2), seed=st.integers(0, 2**16))
def test_presence_and_frequency_penalties_are_for_generated_tokens_alone(
    scores: np.ndarray, presence: float, frequency: float, seed: int
) -> None:
    prompt, output = np.random.default_rng(seed).integers(0, len(scores), (2, 7)).tolist()
    counts = TokenCounts(prompt)
    for token in output:
        counts.add(token)
    mine = scores.copy()
    counts.penalize_generated(mine, presence, frequency)
    for token in range(len(scores)):
        count = np.float32(output.count(token))
        wanted = scores[token] - np.float32(frequency) * count - np.float32(presence) * np.float32(count > 0)
        assert mine[token] == wanted


def test_a_fork_of_counts_goes_its_own_way() -> None:
    counts = TokenCounts([1])
    fork = counts.fork()
    fork.add(2)
    scores = np.ones(4, np.float32)
    counts.penalize_repetition(scores, 2.0)
    assert scores.tolist() == [1, 0.5, 1, 1]
    fork.penalize_generated(scores, 1.0, 0.0)
    assert scores.tolist() == [1, 0.5, 0, 1]
