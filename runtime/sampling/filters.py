"""Which tokens may be drawn: top-k, top-p and min-p, each over what the one before left.

Order and rules are transformers' (generation/logits_process.py: TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper;
the order is GenerationMixin._get_logits_processor's), with float64 weights and ties that no sort decides: of tokens
with equal weights top-p takes the lower ids first, and top-k keeps every token that equals its last one.

A whole vocabulary is never sorted where a part will do; what is kept does not depend on that.
"""

from __future__ import annotations

import numpy as np

#: Tokens a block of the vocabulary whose maxima bound the k-th largest score from below.
_BLOCK = 64
#: Weights, relative to the largest, down to which top-p looks, one after the other, before it sorts everything.
_CUTS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)


def at_least_kth(scores: np.ndarray, k: int) -> np.ndarray:
    """The ids, ascending, of scores that are at least the k-th largest. scores: (n,) float; k >= 1."""
    if k >= len(scores):
        return np.arange(len(scores))
    whole = len(scores) // _BLOCK
    # Each of k blocks holds a score no less than the k-th largest maximum of all blocks, so that bounds the k-th score.
    low = -np.inf
    if k <= whole:
        maxima = scores[: whole * _BLOCK].reshape(whole, _BLOCK).max(axis=1)
        low = np.partition(maxima, whole - k)[whole - k]
    ids = np.flatnonzero(scores >= low)
    candidates = scores[ids]
    kth = np.partition(candidates, len(ids) - k)[len(ids) - k]
    kept: np.ndarray = ids[candidates >= kth]
    return kept


def nucleus(weights: np.ndarray, top_p: float) -> np.ndarray:
    """The indices, ascending, of the smallest set of largest weights whose share of all is at least `top_p`.

    weights: (n,) float64, the largest 1. Never empty.
    """
    wanted = top_p * weights.sum()
    for cut in _CUTS:
        among = np.flatnonzero(weights >= cut)
        if len(among) < len(weights) and weights[among].sum() > wanted * (1 + 1e-9):
            break
    else:
        among = np.arange(len(weights))
    order = among[np.argsort(-weights[among], kind="stable")]
    # A token is kept while those before it fall short of the share. The order's start is that of a whole sort, and so
    # are its sums, however many lie behind.
    before = np.concatenate([[0.0], np.cumsum(weights[order])[:-1]])
    count = max(int(np.searchsorted(before, wanted, side="left")), 1)
    return np.sort(order[:count])


def above_min_p(weights: np.ndarray, min_p: float) -> np.ndarray:
    """The indices, ascending, of weights that are at least `min_p` times the largest, which is 1."""
    return np.flatnonzero(weights >= min_p)
