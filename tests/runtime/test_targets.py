"""Targets over ONNX Runtime: buffers grow, rows are bounded, a failed call is one line and not the end."""

from __future__ import annotations

from typing import Any

import pytest
from decoder_blocks import SPEC, block_target, plan_of, random_tokens, serial_target

from qbpass.rewrites.bundle import Bundle
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.buffers import GRANULE
from qbpass.runtime.call_error import CallError
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.phase_guard import Stage


@pytest.fixture(scope="module")
def target(tiny_bundle: Bundle) -> BlockTarget:
    return BlockTarget.from_bundle(tiny_bundle, SPEC)


def pointers(target: BlockTarget) -> list[int]:
    return [value.data_ptr() for value in target._buffers.values]


def test_buffers_grow_by_granules_and_a_shorter_request_reuses_them(tiny_bundle: Bundle) -> None:
    target = BlockTarget.from_bundle(tiny_bundle, SPEC)
    assert target._buffers.capacity == 0
    target.start(3)
    assert target._buffers.capacity == GRANULE
    first = pointers(target)
    target.start(GRANULE)
    assert pointers(target) == first
    target.start(GRANULE + 1)
    assert target._buffers.capacity == 2 * GRANULE
    assert len(pointers(target)) == 2 * len(tiny_bundle.reference.contract.kv)
    grown = pointers(target)
    target.start(1)
    assert pointers(target) == grown


def test_rows_beyond_the_capacity_are_never_bound(tiny_bundle: Bundle) -> None:
    target = BlockTarget.from_bundle(tiny_bundle, SPEC)
    target.start(GRANULE)
    target.prefill(random_tokens(tiny_bundle, GRANULE - 1))
    with pytest.raises(ValueError, match=f"{GRANULE + 1} rows asked of a cache of {GRANULE}"):
        target.verify([1, 2])
    assert target.length == GRANULE - 1
    assert target.verify([1]).shape == (1, tiny_bundle.manifest.interface.vocab_size)


def test_a_request_after_growing_gives_the_same_bytes(tiny_bundle: Bundle) -> None:
    target = BlockTarget.from_bundle(tiny_bundle, SPEC)
    prompt = random_tokens(tiny_bundle, 8)
    logits = []
    for rows in (10, 2 * GRANULE):
        target.start(rows)
        logits.append(target.prefill(prompt).tobytes() + target.verify([1, 2]).tobytes())
    assert logits[0] == logits[1]


@pytest.mark.parametrize("rows", [0, 5])
def test_a_block_is_one_to_max_queries_rows(target: BlockTarget, rows: int) -> None:
    target.start(20)
    target.prefill([1])
    with pytest.raises(ValueError, match=f"{rows} rows asked of a graph made for 1 to 4"):
        target.verify([1] * rows)


@pytest.mark.parametrize("length", [-1, 4])
def test_rolling_back_goes_backwards_within_what_is_there(target: BlockTarget, length: int) -> None:
    target.start(20)
    target.prefill([1, 2, 3])
    with pytest.raises(ValueError, match="can't roll back from 3"):
        target.rollback(length)


def test_the_serial_reference_does_not_roll_back_and_takes_one_row(tiny_bundle: Bundle) -> None:
    serial = serial_target(tiny_bundle)
    serial.start(9)
    serial.prefill([1, 2, 3])
    with pytest.raises(ValueError, match="can't roll back"):
        serial.rollback(2)
    with pytest.raises(ValueError, match="2 rows asked of serial decoding"):
        serial.verify([1, 2])


@pytest.mark.parametrize("kind", ["block", "serial"])
def test_a_failing_call_is_one_line_and_the_next_request_is_as_if_it_never_was(tiny_bundle: Bundle, kind: str) -> None:
    target: Any = BlockTarget.from_bundle(tiny_bundle, SPEC) if kind == "block" else serial_target(tiny_bundle)
    request = Request(random_tokens(tiny_bundle, 9), max_new_tokens=6)
    wanted, _ = Engine(target).generate(request)
    target.start(20)
    target.prefill(request.prompt)
    outside = target.vocab_size + 5
    with pytest.raises(CallError, match="ONNX Runtime failed in a call") as raised:
        target.verify([outside])
    assert "\n" not in str(raised.value)
    assert target.length == len(request.prompt)
    if kind == "block":
        assert target.guard.stage is Stage.PREFILL
    target.start(20)
    with pytest.raises(CallError):
        target.prefill([outside])
    assert Engine(target).generate(request)[0] == wanted


def test_two_targets_share_a_session_and_not_a_cache(tiny_bundle: Bundle, target: BlockTarget) -> None:
    native = target.native(SPEC)
    assert native.session is target.session
    target.start(20)
    native.start(20)
    target.prefill([1, 2, 3])
    native.prefill([4, 5, 6])
    assert target.cached(0).tobytes() != native.cached(0).tobytes()
    assert not set(pointers(target)) & set(pointers(native))


def test_a_graph_over_another_plan_gives_the_bundles_bytes(tiny_bundle: Bundle, target: BlockTarget) -> None:
    """plan_of, which the tests use in place of a falsifier's run, is the plan the bundle was written with."""
    again = block_target(tiny_bundle, plan_of(tiny_bundle))
    rows = []
    for each in (target, again):
        each.start(20)
        rows.append(each.prefill([3, 1, 4]).tobytes() + each.verify([1, 5, 9, 2]).tobytes())
    assert rows[0] == rows[1]
    assert again.session.get_inputs()[0].name == target.session.get_inputs()[0].name
