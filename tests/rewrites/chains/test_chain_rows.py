"""A fused attention evaluated query by query gives serial decoding's rows, whatever the operator does inside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from chain_models import FORMS, chained
from decoder_blocks import SPEC, random_tokens, replayed

from qbpass.rewrites.bundle import Bundle
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.serial_target import SerialTarget

EVERY_ROW = 13 * (1 + 2 + 3 + 4)


@pytest.mark.parametrize("form", FORMS)
def test_every_row_is_the_serial_one(form: str, tmp_path: Path) -> None:
    bundle = chained(tmp_path, FORMS[form])
    count = replayed(bundle, BlockTarget.from_bundle(bundle, SPEC))
    assert count.equal == count.rows == EVERY_ROW


def test_straight_line_graphs_give_the_same_rows(tmp_path: Path) -> None:
    bundle = chained(tmp_path, FORMS["packed, rotary inside"], emit="specialized")
    count = replayed(bundle, BlockTarget.from_bundle(bundle, SPEC))
    assert count.equal == count.rows == EVERY_ROW


def test_fused_and_separate_attentions_go_into_one_graph(tmp_path: Path) -> None:
    from fused_graphs import Fused

    separate = Fused("decomposed", heads=4, kv_heads=4, added="causal")
    bundle = chained(tmp_path, Fused(), separate, Fused(packed="qkv"), separate)
    assert [chain.layer for chain in bundle.manifest.chains] == [0, 2]
    assert [site.layer for site in bundle.manifest.sites] == [1, 3]
    count = replayed(bundle, BlockTarget.from_bundle(bundle, SPEC))
    assert count.equal == count.rows == EVERY_ROW


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return chained(tmp_path_factory.mktemp("chain"), FORMS["packed, rotary inside"])


def kv(target: BlockTarget | SerialTarget, bundle: Bundle) -> list[bytes]:
    return [target.cached(index).tobytes() for index in range(2 * len(bundle.reference.contract.kv))]


def test_a_reference_over_one_shared_buffer_is_the_reference_over_tensors_that_grow(bundle: Bundle) -> None:
    tokens = random_tokens(bundle, 20)
    shared = SerialTarget.from_bundle(bundle, SPEC)
    growing = SerialTarget.from_frozen(bundle.reference, SPEC)
    rows = []
    for target in (shared, growing):
        target.start(len(tokens))
        first = target.prefill(tokens[:9])
        rows.append([first.tobytes(), *(target.verify([token]).tobytes() for token in tokens[9:])])
    assert rows[0] == rows[1]
    assert kv(shared, bundle) == kv(growing, bundle)


def test_a_block_leaves_the_cache_that_serial_decoding_leaves(bundle: Bundle) -> None:
    tokens = random_tokens(bundle, 14)
    serial, block = SerialTarget.from_bundle(bundle, SPEC), BlockTarget.from_bundle(bundle, SPEC)
    for target in (serial, block):
        target.start(len(tokens))
        target.prefill(tokens[:7])
    for token in tokens[7:]:
        serial.verify([token])
    block.verify(tokens[7:11])
    block.verify(tokens[11:14])
    assert kv(block, bundle) == kv(serial, bundle)


def test_what_lies_behind_the_counter_never_reaches_the_logits(bundle: Bundle) -> None:
    tokens = random_tokens(bundle, 12)

    def run(spoil: float | None) -> bytes:
        target = BlockTarget.from_bundle(bundle, SPEC)
        target.start(len(tokens))
        target.prefill(tokens[:6])
        if spoil is not None:
            for value in target._buffers.values:
                whole = value.numpy().copy()
                whole[:, :, 6:] = spoil
                value.update_inplace(np.ascontiguousarray(whole))
        return target.verify(tokens[6:9]).tobytes()

    assert run(None) == run(np.nan) == run(1e30)


def test_rejected_rows_leave_no_trace(bundle: Bundle) -> None:
    tokens, wrong = random_tokens(bundle, 12), random_tokens(bundle, 12, seed=5)
    rows = []
    for speculated in (False, True):
        target = BlockTarget.from_bundle(bundle, SPEC)
        target.start(16)
        target.prefill(tokens[:6])
        if speculated:
            target.verify([tokens[6], *wrong[:3]])
            target.rollback(6)
        rows.append(target.verify(tokens[6:10]).tobytes())
    assert rows[0] == rows[1]


def test_a_target_whose_memory_grew_binds_the_new_memory(bundle: Bundle) -> None:
    """Bindings are kept from call to call: they must not outlive the buffers."""
    tokens = random_tokens(bundle, 10)
    target = BlockTarget.from_bundle(bundle, SPEC)
    rows = []
    for capacity in (10, 300, 40):
        target.start(capacity)
        target.prefill(tokens[:5])
        rows.append(target.verify(tokens[5:8]).tobytes())
    assert rows[0] == rows[1] == rows[2]


def test_a_call_longer_than_the_cache_is_an_error_and_not_a_write(bundle: Bundle) -> None:
    target = BlockTarget.from_bundle(bundle, SPEC)
    target.start(8)
    with pytest.raises(ValueError, match="rows asked of a cache of 256"):
        target.prefill(random_tokens(bundle, 257))
