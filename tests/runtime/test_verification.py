"""The acceptance rule is its definition: the longest proposed prefix that the target chose itself, and one more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbpass.runtime.verification import verify_greedy

TOKENS = st.integers(0, 2)


@given(pair=st.lists(st.tuples(TOKENS, TOKENS), max_size=8), last=TOKENS)
def test_the_longest_chosen_prefix_is_accepted(pair: list[tuple[int, int]], last: int) -> None:
    proposal, choices = [p for p, _ in pair], [*(c for _, c in pair), last]
    verdict = verify_greedy(proposal, choices)
    prefixes = [count for count in range(len(proposal) + 1) if proposal[:count] == choices[:count]]
    assert verdict.accepted == tuple(proposal[: max(prefixes)])
    assert verdict.next_token == choices[max(prefixes)]
    assert verdict.committed == tuple(choices[: max(prefixes) + 1])
    assert verdict.rejected == len(proposal) - max(prefixes)
    assert verdict.is_bonus == (proposal == choices[:-1])


@pytest.mark.parametrize("choices", [[], [1], [1, 2, 3, 4]])
def test_one_choice_a_row_is_required(choices: list[int]) -> None:
    with pytest.raises(ValueError, match="choices for 2 proposed tokens"):
        verify_greedy([1, 2], choices)
