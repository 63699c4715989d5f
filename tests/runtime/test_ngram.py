"""The index proposes what a naive search over the tokens would."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbpass.runtime.choosing import GREEDY
from qbpass.runtime.ngram import NgramDrafter

TOKENS = st.lists(st.integers(0, 2), max_size=40)


def naive(tokens: Sequence[int], sizes: Sequence[int], limit: int) -> list[int]:
    """What follows the latest earlier occurrence of the longest suffix that has one with a continuation."""
    for size in sorted(sizes, reverse=True):
        starts = [i for i in range(len(tokens) - size) if list(tokens[i : i + size]) == list(tokens[-size:])]
        if starts:
            return list(tokens[starts[-1] + size : starts[-1] + size + limit])
    return []


def proposed(drafter: NgramDrafter, limit: int) -> list[int]:
    return list(drafter.propose(limit, GREEDY.fork).tokens)


@given(
    prompt=TOKENS,
    chunks=st.lists(TOKENS, max_size=4),
    limit=st.integers(0, 5),
    sizes=st.sets(st.integers(1, 4), min_size=1),
)
def test_a_proposal_is_what_a_naive_search_finds(
    prompt: list[int], chunks: list[list[int]], limit: int, sizes: set[int]
) -> None:
    drafter = NgramDrafter(sorted(sizes))
    drafter.start(prompt, 64)
    tokens = list(prompt)
    assert proposed(drafter, limit) == naive(tokens, tuple(sizes), limit)
    for chunk in chunks:
        drafter.extend(chunk)
        tokens += chunk
        assert proposed(drafter, limit) == naive(tokens, tuple(sizes), limit)


def test_a_new_request_forgets_the_one_before() -> None:
    drafter = NgramDrafter()
    drafter.start([1, 2, 3, 1, 2], 64)
    assert proposed(drafter, 2) == [3, 1]
    drafter.start([1, 2], 64)
    assert proposed(drafter, 2) == []


def test_a_longer_match_wins_over_a_later_one() -> None:
    drafter = NgramDrafter((3, 2))
    drafter.start([1, 2, 3, 8, 7, 2, 3, 9, 1, 2, 3], 64)
    assert proposed(drafter, 1) == [8]


@pytest.mark.parametrize("sizes", [(), (0,), (2, -1)])
def test_sizes_are_positive(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        NgramDrafter(sizes)
