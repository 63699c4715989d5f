"""A prefix shows what it held, however it grew since, and to whom it was forked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbpass.runtime.sampling.prefix import Prefix


@given(prompt=st.lists(st.integers(0, 2**31), max_size=700), more=st.integers(0, 1500), fork_at=st.integers(0, 1500))
def test_a_prefix_is_its_tokens_at_every_length(prompt: list[int], more: int, fork_at: int) -> None:
    prefix, tokens = Prefix(prompt), list(prompt)
    fork, forked = prefix.fork(), list(tokens)
    early = prefix.tokens
    for token in range(more):
        if token == fork_at:
            fork, forked = prefix.fork(), list(tokens)
        prefix.append(token)
        tokens.append(token)
    fork.append(7)
    assert prefix.tokens.tolist() == tokens
    assert fork.tokens.tolist() == [*forked, 7]
    assert early.tolist() == prompt
    assert len(prefix) == len(tokens)


def test_what_is_shown_cannot_be_written_to() -> None:
    prefix = Prefix([1, 2])
    with pytest.raises(ValueError, match="read-only"):
        prefix.tokens[0] = 3
    prefix.append(3)
    assert prefix.tokens.dtype == np.int64
