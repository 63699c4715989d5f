"""Noise belongs to (seed, position) and to nothing else, and draws what the weights say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbpass.runtime.sampling.noise import MAX_SEED, race, uniform_V


@given(seed=st.integers(0, MAX_SEED), position=st.integers(0, 2**31), count=st.integers(1, 50))
def test_noise_is_philox_keyed_by_the_seed_with_the_position_as_its_counters_second_word(
    seed: int, position: int, count: int
) -> None:
    wanted = np.random.Generator(np.random.Philox(key=seed, counter=[0, position, 0, 0])).random(count)
    assert uniform_V(seed, position, count).tobytes() == wanted.tobytes()
    uniform_V(seed, position + 1, count)
    assert uniform_V(seed, position, count).tobytes() == wanted.tobytes()


def test_positions_share_no_numbers() -> None:
    vectors = [uniform_V(7, position, 1000).copy() for position in range(20)]
    assert len(np.unique(np.concatenate(vectors))) == 20_000


def test_the_position_as_the_counters_first_word_would_give_the_next_position_the_same_numbers_again() -> None:
    first, second = (np.random.Generator(np.random.Philox(key=7, counter=p)).random(40) for p in (5, 6))
    assert first[4:].tobytes() == second[:-4].tobytes()


def test_seeds_of_64_bits_count_in_all_their_bits() -> None:
    base = uniform_V(0, 3, 8).copy()
    assert all((uniform_V(1 << bit, 3, 8) != base).any() for bit in range(64))


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_a_race_is_won_in_proportion_to_the_weights_whatever_their_scale(scale: float) -> None:
    weights = np.array([0.5, 0.0, 0.3, 0.15, 0.05])
    wins = np.bincount([race(weights * scale, uniform_V(3, p, 5)) for p in range(20_000)], minlength=5) / 20_000
    # Standard deviation of a share: at most sqrt(0.25 / 20,000) = 0.0035.
    assert np.abs(wins - weights).max() < 0.015
    assert wins[1] == 0


def test_a_uniform_number_of_zero_does_not_win() -> None:
    assert race(np.array([1.0, 1e-9]), np.array([0.0, 0.5])) == 1
