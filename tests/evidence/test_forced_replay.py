"""The replay compares every row at every width and alignment, and a single bit is enough for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from decoder_blocks import SPEC, block_target, plan_of, random_tokens, serial_target
from fake_target import FakeTarget, scrambled

from qbpass.evidence.forced_replay import ReplayCount, replay, serial_rows
from qbpass.rewrites.bundle import Bundle
from qbpass.runtime.block_target import BlockTarget

CELLS = {(width, residue) for width in (1, 2, 3, 4) for residue in range(4)}


@pytest.fixture(scope="module")
def target(tiny_bundle: Bundle) -> BlockTarget:
    return block_target(tiny_bundle, plan_of(tiny_bundle))


@pytest.fixture(scope="module")
def case(tiny_bundle: Bundle) -> tuple[tuple[int, ...], tuple[int, ...], np.ndarray]:
    prompt, tokens = random_tokens(tiny_bundle, 5, 1), random_tokens(tiny_bundle, 17, 2)
    return prompt, tokens, serial_rows(serial_target(tiny_bundle), prompt, tokens)


class FlippedBit:
    """A target that flips one bit of one row, the `at`-th it evaluates."""

    def __init__(self, inner: BlockTarget, at: int, byte: int, bit: int):
        self.inner, self.at, self.byte, self.bit = inner, at, byte, bit
        self.max_queries, self.evaluated = inner.max_queries, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def verify(self, tokens: Sequence[int]) -> np.ndarray:
        logits = self.inner.verify(tokens).copy()
        row = self.at - self.evaluated
        if 0 <= row < len(tokens):
            logits[row].view(np.uint8)[self.byte] ^= 1 << self.bit
        self.evaluated += len(tokens)
        return logits


Case = tuple[tuple[int, ...], tuple[int, ...], np.ndarray]


def test_rows_are_counted_by_width_and_alignment_and_all_sixteen_are_covered(target: BlockTarget, case: Case) -> None:
    prompt, tokens, wanted = case
    count = ReplayCount()
    replay(target, "p", prompt, tokens, wanted, count)
    assert set(count.by_width_and_alignment) == CELLS
    assert sum(count.by_width_and_alignment.values()) == count.rows == len(tokens) * (1 + 2 + 3 + 4)
    assert count.equal == count.rows
    assert count.first is None


@pytest.mark.parametrize(("at", "byte", "bit"), [(0, 0, 0), (40, 1027, 7), (169, 512, 3)])
def test_one_flipped_bit_in_one_row_is_found(target: BlockTarget, case: Case, at: int, byte: int, bit: int) -> None:
    prompt, tokens, wanted = case
    count = ReplayCount()
    replay(FlippedBit(target, at, byte, bit), "p", prompt, tokens, wanted, count)  # type: ignore[arg-type]
    assert count.rows - count.equal == 1
    assert count.first is not None
    assert count.first.prompt == "p"
    assert 0 <= count.first.row < count.first.queries


def test_a_zero_of_another_sign_differs() -> None:
    """Bytes, not values: 0.0 == -0.0, and yet it is another result."""
    target, fed = FakeTarget(scrambled(7), 7), [1, 2, 3, 4, 5]
    wanted = serial_rows(target, [1], fed)
    signed = np.where(wanted == 0, np.float32(-0.0), wanted)
    assert np.array_equal(signed, wanted)
    replay(target, "p", [1], fed, signed, count := ReplayCount())
    assert count.equal == 0
    assert count.first is not None
    assert count.first.max_abs_difference == 0.0


def test_counts_add_up_over_prompts_and_the_first_difference_stays() -> None:
    right, wrong = FakeTarget(scrambled(7), 7), FakeTarget(lambda tokens: len(tokens) % 7, 7)
    fed, count = [1, 2, 3, 4, 5], ReplayCount()
    wanted = serial_rows(right, [1], fed)
    for name, target in (("a", right), ("b", wrong), ("c", wrong)):
        replay(target, name, [1], fed, wanted, count)
    assert count.rows == 3 * 5 * 10
    assert 50 <= count.equal < count.rows
    assert count.first is not None
    assert count.first.prompt == "b"


def test_each_width_starts_at_the_prompt_again(case: Case, tiny_bundle: Bundle) -> None:
    """Every block is fed the reference's own tokens: a difference can't travel from one width to the next."""
    target = FakeTarget(scrambled(7), 7)
    replay(target, "p", [1, 2], [3, 4, 5], serial_rows(target, [1, 2], [3, 4, 5]), ReplayCount())
    assert target.kv == [1, 2, 3, 4, 5]
    by_position = {position: {token for p, token in target.fed if p == position} for position, _ in target.fed}
    assert by_position == {2: {3}, 3: {4}, 4: {5}}


def test_native_speculation_is_found_to_differ(target: BlockTarget, case: Case) -> None:
    prompt, tokens, wanted = case
    count = ReplayCount()
    replay(target.native(SPEC), "p", prompt, tokens, wanted, count)
    assert count.rows - count.equal > count.rows / 2
