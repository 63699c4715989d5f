"""A verdict is the target's own choices, row by row, until they part from the proposal or stop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbpass.runtime.choosing import GREEDY
from qbpass.runtime.stops import Stops
from qbpass.runtime.verification import judge

VOCABULARY = 4
TOKENS = st.integers(0, VOCABULARY - 1)


def rows(choices: list[int]) -> np.ndarray:
    return np.eye(VOCABULARY, dtype=np.float32)[choices]


class Watching:
    """A greedy chooser that writes down what it is advanced over."""

    def __init__(self) -> None:
        self.prefix: list[int] = []
        self.asked: list[int] = []

    def choose(self, logits_V: np.ndarray) -> int:
        self.asked.append(len(self.prefix))
        return GREEDY.choose(logits_V)

    def advance(self, token: int) -> None:
        self.prefix.append(token)

    def fork(self) -> Watching:
        raise AssertionError("verification forks nothing")


@given(
    pair=st.lists(st.tuples(TOKENS, TOKENS), max_size=8),
    last=TOKENS,
    stop_ids=st.frozensets(TOKENS, max_size=2),
)
def test_a_verdict_is_what_serial_decoding_shows(
    pair: list[tuple[int, int]], last: int, stop_ids: frozenset[int]
) -> None:
    proposal, choices = [p for p, _ in pair], [*(c for _, c in pair), last]
    shown = []
    for row, token in enumerate(choices):
        shown.append(token)
        if token in stop_ids or row == len(proposal) or token != proposal[row]:
            break
    chooser = Watching()
    verdict = judge(proposal, rows(choices), chooser, Stops(stop_ids).begin())
    same = [a == b for a, b in zip(shown, proposal, strict=False)]
    assert list(verdict.tokens) == shown == chooser.prefix
    assert chooser.asked == list(range(len(shown)))  # each row once, with the state of its own prefix
    assert verdict.accepted == sum(same)
    assert verdict.rejected + verdict.discarded == len(proposal) - sum(same)
    assert (verdict.rejected > 0) == (False in same)
    assert (verdict.stop is not None) == (shown[-1] in stop_ids)
    assert verdict.is_correction == (False in same)
    assert verdict.is_bonus == (len(shown) == len(choices))
    assert not (verdict.rejected and verdict.discarded)


@pytest.mark.parametrize("choices", [[], [1], [1, 2, 3, 0]])
def test_one_row_a_proposed_token_and_one_more_is_required(choices: list[int]) -> None:
    with pytest.raises(ValueError, match="rows of logits for 2 proposed tokens"):
        judge([1, 2], rows(choices), GREEDY, Stops().begin())
