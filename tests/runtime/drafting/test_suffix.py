"""The suffix drafter proposes the likeliest continuation of the longest match, as a search over the tokens does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_suffix_automaton import TOKENS, ends, longest_seen_before

from qbpass.runtime.choosing import GREEDY
from qbpass.runtime.drafting.evidence import grade_of
from qbpass.runtime.drafting.suffix import SuffixDrafter


def propose(drafter: SuffixDrafter, limit: int) -> tuple[int, ...]:
    return drafter.propose(limit, GREEDY.fork).tokens


def likeliest_next(tokens: Sequence[int]) -> int | None:
    """What followed the longest suffix seen before most often, and latest of these; None where there is none."""
    size = longest_seen_before(tokens)
    if not size:
        return None
    places = [end + 1 for end in ends(tokens, tokens[-size:]) if end + 1 < len(tokens)]
    followers = [tokens[place] for place in places]
    return max(set(followers), key=lambda each: (followers.count(each), max(p for p in places if tokens[p] == each)))


@given(prompt=TOKENS, chunks=st.lists(TOKENS, max_size=3))
def test_the_first_token_is_what_a_search_finds(prompt: list[int], chunks: list[list[int]]) -> None:
    drafter = SuffixDrafter()
    drafter.start(prompt, 64)
    tokens = list(prompt)
    for chunk in [[], *chunks]:
        drafter.extend(chunk)
        tokens += chunk
        wanted = likeliest_next(tokens)
        assert propose(drafter, 1) == (() if wanted is None else (wanted,))


@given(tokens=TOKENS, limit=st.integers(0, 6))
def test_a_longer_proposal_begins_as_a_shorter_one(tokens: list[int], limit: int) -> None:
    drafter = SuffixDrafter()
    drafter.start(tokens, 64)
    assert propose(drafter, limit) == propose(drafter, limit + 3)[:limit]


def test_what_repeats_itself_is_proposed_on_and_on() -> None:
    drafter = SuffixDrafter()
    drafter.start([9, 1, 2, 3, 1, 2, 3, 1], 64)
    assert propose(drafter, 8) == (2, 3, 1, 2, 3, 1, 2, 3)


def test_the_more_frequent_continuation_wins_over_the_latest() -> None:
    drafter = SuffixDrafter()
    drafter.start([1, 5, 0, 1, 5, 2, 1, 6, 3, 1], 64)
    assert propose(drafter, 1) == (5,)


def test_the_grade_tells_how_long_the_match_is_and_how_sure_what_follows() -> None:
    drafter = SuffixDrafter()
    drafter.start([1, 5, 0, 1, 5, 2, 1, 6, 3, 1], 64)
    assert drafter.propose(1, GREEDY.fork).grade == grade_of(1, 1)
    drafter.start([1, 2, 3, 4, 0, 1, 2, 3, 4, 8, 1, 2, 3], 64)
    assert drafter.propose(1, GREEDY.fork).grade == grade_of(3, 2)


def test_a_new_request_forgets_the_one_before() -> None:
    drafter = SuffixDrafter()
    drafter.start([1, 2, 3, 1, 2], 64)
    assert propose(drafter, 2) == (3, 1)
    drafter.start([1, 2], 64)
    assert propose(drafter, 2) == ()


@given(tokens=st.lists(st.integers(0, 2), max_size=60), most=st.integers(2, 9))
def test_it_remembers_the_latest_half_at_least_and_never_more_than_it_may(tokens: list[int], most: int) -> None:
    drafter = SuffixDrafter(most_tokens=most)
    drafter.start([], 64)
    for index, token in enumerate(tokens):
        drafter.extend([token])
        assert len(drafter._tokens) == drafter._seen.size <= most
        assert drafter._tokens == tokens[: index + 1][-len(drafter._tokens) :]
        assert len(drafter._tokens) >= min(index + 1, most // 2)


def test_an_index_over_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least two tokens"):
        SuffixDrafter(most_tokens=1)
