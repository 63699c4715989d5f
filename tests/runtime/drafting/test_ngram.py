"""The index proposes what a naive search over the tokens would."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbpass.runtime.choosing import GREEDY
from qbpass.runtime.drafting.evidence import LENGTHS, MOST_AGREEING, grade_of
from qbpass.runtime.drafting.ngram import NgramDrafter

TOKENS = st.lists(st.integers(0, 2), max_size=40)


def naive(tokens: Sequence[int], sizes: Sequence[int], limit: int) -> list[int]:
    """What follows the latest earlier occurrence of the longest suffix that has one, and, where the tokens end, follows
    it there.
    """
    for size in sorted(sizes, reverse=True):
        starts = [i for i in range(len(tokens) - size) if list(tokens[i : i + size]) == list(tokens[-size:])]
        if starts:
            longer = list(tokens)
            for place in range(starts[-1] + size, starts[-1] + size + limit):
                longer.append(longer[place])
            return longer[len(tokens) :]
    return []


def propose(drafter: NgramDrafter, limit: int) -> list[int]:
    return list(drafter.propose(limit, GREEDY.fork).tokens)


@given(
    prompt=TOKENS,
    chunks=st.lists(TOKENS, max_size=4),
    limit=st.integers(0, 7),
    sizes=st.sets(st.integers(1, 4), min_size=1),
)
def test_a_proposal_is_what_a_naive_search_finds(
    prompt: list[int], chunks: list[list[int]], limit: int, sizes: set[int]
) -> None:
    drafter = NgramDrafter(sorted(sizes))
    drafter.start(prompt, 64)
    tokens = list(prompt)
    assert propose(drafter, limit) == naive(tokens, tuple(sizes), limit)
    for chunk in chunks:
        drafter.extend(chunk)
        tokens += chunk
        assert propose(drafter, limit) == naive(tokens, tuple(sizes), limit)


def test_what_repeats_itself_is_proposed_on_and_on() -> None:
    drafter = NgramDrafter()
    drafter.start([9, 1, 2, 3, 1, 2, 3, 1], 64)
    assert propose(drafter, 8) == [2, 3, 1, 2, 3, 1, 2, 3]


def test_a_new_request_forgets_the_one_before() -> None:
    drafter = NgramDrafter()
    drafter.start([1, 2, 3, 1, 2], 64)
    assert propose(drafter, 2) == [3, 1]
    drafter.start([1, 2], 64)
    assert propose(drafter, 2) == []


def test_a_longer_match_wins_over_a_later_one() -> None:
    drafter = NgramDrafter((3, 2))
    drafter.start([1, 2, 3, 8, 7, 2, 3, 9, 1, 2, 3], 64)
    assert propose(drafter, 1) == [8]


@pytest.mark.parametrize(
    ("tokens", "length", "agreeing"),
    [
        ([1, 5, 2, 1], 1, 1),
        ([1, 5, 2, 1, 5, 3, 1], 1, 2),
        ([1, 6, 2, 1, 5, 3, 1], 1, 1),  # the one before went on otherwise
        ([7, 8, 1, 5, 7, 8, 1], 3, 1),
        ([*range(9), 20, *range(9)], 9, 1),  # longer than any indexed n-gram
        ([*range(40), *range(40)], 40, 1),
    ],
)
def test_the_grade_tells_how_long_the_match_is_and_how_many_before_it_agree(
    tokens: list[int], length: int, agreeing: int
) -> None:
    drafter = NgramDrafter()
    drafter.start(tokens, 64)
    assert drafter.propose(1, GREEDY.fork).grade == grade_of(length, agreeing)


def test_grades_are_few_and_told_apart_by_length_and_agreement() -> None:
    grades = {grade_of(length, agreeing) for length in range(1, 100) for agreeing in range(1, 100)}
    assert grades == set(range(1, 1 + (len(LENGTHS) + 1) * MOST_AGREEING))


@pytest.mark.parametrize("sizes", [(), (0,), (2, -1)])
def test_sizes_are_positive(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        NgramDrafter(sizes)
