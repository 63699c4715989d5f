"""The guarded graph writes a call's rows where they belong, in the memory it was given, and touches no other byte."""

from __future__ import annotations

import numpy as np
import pytest
from decoder_blocks import block_target, plan_of, random_tokens, serial_target

from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.plan import Layout
from qbpass.runtime.block_target import BlockTarget

CAPACITY = 256


@pytest.fixture(scope="module", params=["qb", "pq"])
def target(request: pytest.FixtureRequest, tiny_bundle: Bundle) -> BlockTarget:
    layout: Layout = request.param
    return block_target(tiny_bundle, plan_of(tiny_bundle, layout))


def buffers(target: BlockTarget) -> list[np.ndarray]:
    """Every buffer whole, (capacity, Hkv, d), scratch rows included."""
    return [value.numpy().copy() for value in target._buffers.values]


def scribble(target: BlockTarget, first_row: int) -> None:
    """A pattern in the rows from `first_row` on: scratch memory, which a call may not touch but for its own rows."""
    for index, value in enumerate(target._buffers.values):
        memory = value.numpy()
        assert memory.shape[0] == CAPACITY
        memory[first_row:] = 1000.0 + index
        value.update_inplace(np.ascontiguousarray(memory))


@pytest.mark.parametrize("queries", [1, 2, 3, 4])
def test_a_call_writes_its_own_rows_and_leaves_every_other_byte(
    tiny_bundle: Bundle, target: BlockTarget, queries: int
) -> None:
    prompt, tokens = random_tokens(tiny_bundle, 7, 1), random_tokens(tiny_bundle, queries, 2)
    target.start(100)
    target.prefill(prompt)
    scribble(target, 7)
    before, addresses = buffers(target), [value.data_ptr() for value in target._buffers.values]
    target.verify(tokens)
    after = buffers(target)
    assert [value.data_ptr() for value in target._buffers.values] == addresses
    serial = serial_target(tiny_bundle)
    serial.start(100)
    serial.prefill(prompt)
    for token in tokens:
        serial.verify([token])
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        assert new[:7].tobytes() == old[:7].tobytes()
        assert new[7 + queries :].tobytes() == old[7 + queries :].tobytes()
        assert new[7 : 7 + queries].tobytes() == serial.cached(index)[7:].tobytes()


def test_prefill_leaves_the_rows_behind_it(tiny_bundle: Bundle, target: BlockTarget) -> None:
    target.start(100)
    scribble(target, 0)
    before = buffers(target)
    target.prefill(random_tokens(tiny_bundle, 9, 3))
    for old, new in zip(before, buffers(target), strict=True):
        assert new[9:].tobytes() == old[9:].tobytes()
        assert not np.any(new[:9] == old[:9])


def test_what_lies_in_scratch_rows_never_reaches_the_logits(tiny_bundle: Bundle, target: BlockTarget) -> None:
    prompt, tokens = random_tokens(tiny_bundle, 7, 1), random_tokens(tiny_bundle, 4, 2)
    rows = []
    for filled in (False, True):
        target.start(100)
        target.prefill(prompt)
        if filled:
            for value in target._buffers.values:
                memory = value.numpy()
                memory[7:] = np.nan
                value.update_inplace(np.ascontiguousarray(memory))
        rows.append(target.verify(tokens).tobytes())
    assert rows[0] == rows[1]


def test_speculating_and_rolling_back_is_as_if_it_never_happened(tiny_bundle: Bundle, target: BlockTarget) -> None:
    prompt, wrong, right = (random_tokens(tiny_bundle, n, seed) for n, seed in ((6, 1), (4, 2), (4, 3)))
    outcomes = []
    for speculated in (False, True):
        target.start(100)
        target.prefill(prompt)
        if speculated:
            target.verify(wrong)
            target.rollback(8)  # two of the wrong rows stay, then they go, too
            target.rollback(6)
        logits = target.verify(right).tobytes()
        outcomes.append((logits, [buffer[:10].tobytes() for buffer in buffers(target)]))
    assert outcomes[0] == outcomes[1]
