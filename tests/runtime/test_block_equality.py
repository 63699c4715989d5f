"""Bytes: blocks of rows over an in-place cache give what serial decoding gives, rows and KV alike."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from decoder_blocks import SPEC, block_target, plan_of, random_tokens, replayed, serial_target

from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.plan import Layout
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.choosing import Chooser
from qbpass.runtime.drafter import Proposal
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.serial_target import SerialTarget

LAYOUTS: tuple[Layout, ...] = ("qb", "pq")


@pytest.fixture(scope="module", params=["eager", "sdpa"])
def bundle(request: pytest.FixtureRequest, tiny_bundle: Bundle, tiny_sdpa_bundle: Bundle) -> Bundle:
    return tiny_bundle if request.param == "eager" else tiny_sdpa_bundle


@pytest.fixture(scope="module", params=LAYOUTS)
def target(request: pytest.FixtureRequest, bundle: Bundle) -> BlockTarget:
    return block_target(bundle, plan_of(bundle, request.param))


@pytest.fixture(scope="module")
def serial(bundle: Bundle) -> SerialTarget:
    return serial_target(bundle)


def kv(target: BlockTarget | SerialTarget, bundle: Bundle) -> list[bytes]:
    return [target.cached(index).tobytes() for index in range(2 * len(bundle.reference.contract.kv))]


@pytest.mark.parametrize("prompt_tokens", [1, 62, 254])
def test_every_width_at_every_alignment_equals_serial_and_native_does_not(
    bundle: Bundle, target: BlockTarget, prompt_tokens: int
) -> None:
    prompt, tokens = random_tokens(bundle, prompt_tokens, 6), random_tokens(bundle, 17, 7)
    count = replayed(bundle, target, prompt, tokens)
    assert count.equal == count.rows == 17 * (1 + 2 + 3 + 4)
    assert set(count.by_width_and_alignment) == {(q, residue) for q in (1, 2, 3, 4) for residue in range(4)}
    native = replayed(bundle, target.native(SPEC), prompt, tokens)
    assert native.rows == count.rows
    assert native.rows - native.equal > native.rows / 2


@pytest.mark.parametrize("prompt_tokens", [1, 5, 63, 300])
def test_prefill_writes_the_reference_s_keys_and_values(
    bundle: Bundle, target: BlockTarget, serial: SerialTarget, prompt_tokens: int
) -> None:
    prompt = random_tokens(bundle, prompt_tokens, 8)
    rows = []
    for each in (target, serial):
        each.start(prompt_tokens + 1)
        rows.append(each.prefill(prompt).tobytes())
    assert rows[0] == rows[1]
    assert kv(target, bundle) == kv(serial, bundle)


class WrongThenRight:
    """Proposes the reference's own continuation with one token replaced, so that blocks are accepted in part."""

    def __init__(self, continuation: tuple[int, ...], vocab_size: int):
        self.continuation, self.vocab_size = continuation, vocab_size

    def start(self, tokens: tuple[int, ...], rows: int) -> None:
        self.prompt, self.seen = len(tokens), 0

    def extend(self, tokens: tuple[int, ...]) -> None:
        self.seen += len(tokens)

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        proposal = list(self.continuation[self.seen : self.seen + limit])
        wrong = self.seen % (limit + 1) if limit else 0
        if wrong < len(proposal):
            proposal[wrong] = (proposal[wrong] + 1) % self.vocab_size
        return Proposal(tuple(proposal))


def test_after_a_speculative_request_the_kv_rows_are_the_serial_ones(
    bundle: Bundle, target: BlockTarget, serial: SerialTarget
) -> None:
    request = Request(random_tokens(bundle, 21, 9), max_new_tokens=40, k=3)
    wanted, _ = Engine(serial).generate(request)
    drafter = WrongThenRight(wanted.token_ids, target.vocab_size)
    got, trace = Engine(target, drafter).generate(request)
    assert got == wanted
    assert trace.accepted > 0
    assert trace.rows_rolled_back > 0
    assert target.length == serial.length == 21 + 40 - 1
    assert kv(target, bundle) == kv(serial, bundle)


def test_a_rolled_back_block_leaves_no_trace_in_what_follows(bundle: Bundle, target: BlockTarget) -> None:
    prompt, wrong, right = (random_tokens(bundle, count, seed) for count, seed in ((10, 1), (4, 2), (9, 3)))
    outcomes = []
    for speculated in (False, True):
        target.start(30)
        rows = [target.prefill(prompt)]
        for start in range(0, 9, 3):
            if speculated:
                before = target.length
                target.verify(wrong)
                target.rollback(before)
            rows.append(target.verify(right[start : start + 3]).copy())
        outcomes.append((np.concatenate(rows).tobytes(), kv(target, bundle)))
    assert outcomes[0] == outcomes[1]


def test_requests_do_not_see_each_other(bundle: Bundle, target: BlockTarget) -> None:
    request = Request(random_tokens(bundle, 12, 4), max_new_tokens=8)
    first = Engine(target).generate(request)[0]
    Engine(target).generate(Request(random_tokens(bundle, 300, 5), max_new_tokens=8))
    assert Engine(target).generate(request)[0] == first


@pytest.mark.parametrize("prompt_tokens", [9, 62])
def test_a_layout_active_in_prefill_still_evaluates_every_row_of_a_block_as_one_row(
    tiny_bundle: Bundle, prompt_tokens: int
) -> None:
    """Under mask 3 prefill itself runs QB: its KV is not the reference's, and still every block equals its rows."""
    target = block_target(tiny_bundle, plan_of(tiny_bundle, phase_mask=3))
    prompt, tokens = random_tokens(tiny_bundle, prompt_tokens, 1), random_tokens(tiny_bundle, 8, 2)
    rows = {}
    for width in (1, 2, 4):
        target.start(prompt_tokens + 8)
        target.prefill(prompt)
        blocks = [target.verify(tokens[start : start + width]).copy() for start in range(0, 8, width)]
        rows[width] = np.concatenate(blocks).tobytes()
    assert rows[1] == rows[2] == rows[4]
