"""The automaton knows what a search over the tokens finds."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from qbpass.runtime.drafting.suffix_automaton import ROOT, SuffixAutomaton

TOKENS = st.lists(st.integers(0, 2), max_size=40)


def ends(tokens: Sequence[int], part: Sequence[int]) -> list[int]:
    """Every index at which `part` ends."""
    size = len(part)
    return [i + size - 1 for i in range(len(tokens) - size + 1) if list(tokens[i : i + size]) == list(part)]


def longest_seen_before(tokens: Sequence[int]) -> int:
    """The length of the longest suffix that ends earlier, too."""
    return max((size for size in range(len(tokens)) if size and len(ends(tokens, tokens[-size:])) > 1), default=0)


def read(tokens: Sequence[int], depth: int = 1000) -> SuffixAutomaton:
    automaton = SuffixAutomaton(depth)
    for token in tokens:
        automaton.append(token)
    return automaton


@given(TOKENS)
def test_the_match_is_the_longest_suffix_that_was_there_before(tokens: list[int]) -> None:
    automaton = SuffixAutomaton()
    for index, token in enumerate(tokens):
        automaton.append(token)
        assert automaton.length[automaton.match] == longest_seen_before(tokens[: index + 1])


@given(TOKENS)
def test_what_followed_a_match_how_often_and_where_last(tokens: list[int]) -> None:
    automaton = read(tokens)
    state = automaton.match
    while state != ROOT:
        suffix = tokens[-automaton.length[state] :]
        followers = {tokens[end + 1] for end in ends(tokens, suffix) if end + 1 < len(tokens)}
        assert automaton.next[state].keys() == followers
        for token, after in automaton.next[state].items():
            places = ends(tokens, [*suffix, token])
            assert (automaton.count[after], automaton.latest[after]) == (len(places), places[-1])
        state = automaton.link[state]


@given(TOKENS)
def test_it_has_at_most_two_states_a_token(tokens: list[int]) -> None:
    automaton = read(tokens)
    assert len(automaton.length) <= max(2 * len(tokens), 1) + (len(tokens) == 1)
    assert sum(map(len, automaton.next)) <= 3 * max(len(tokens), 1)


def test_a_run_of_one_token_takes_no_more_than_depth_a_token() -> None:
    automaton = read([7] * 500, depth=8)
    assert automaton.length[automaton.match] == 499
    assert sum(automaton.count) == 8 * 500 - sum(range(8))
