"""A row alone is evaluated by the frozen graph itself, over the memory that the chains share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chain_models import FORMS, chained
from decoder_blocks import SPEC, random_tokens, replayed

from qbpass.evidence.observed_calls import ObservedCall, ObservedSession
from qbpass.rewrites.bundle import Bundle
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.open_target import open_target
from qbpass.runtime.row_calls import RowCalls, open_row_calls
from qbpass.runtime.serial_target import SerialTarget

EVERY_ROW = 13 * (1 + 2 + 3 + 4)


@pytest.fixture(scope="module", params=["packed, rotary inside", "half precision"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return chained(tmp_path_factory.mktemp("rows"), FORMS[request.param])


def opened(bundle: Bundle) -> BlockTarget:
    target = open_target(bundle, SPEC)
    assert isinstance(target, BlockTarget)
    return target


def watched(target: BlockTarget, bundle: Bundle) -> list[ObservedCall]:
    seen: list[ObservedCall] = []
    target.watch(
        lambda session, graph: ObservedSession(session, graph, bundle.manifest.interface.input_ids, seen.append)
    )
    return seen


def test_every_row_is_the_serial_one(bundle: Bundle) -> None:
    count = replayed(bundle, opened(bundle))
    assert count.equal == count.rows == EVERY_ROW


def test_rows_alone_run_the_frozen_graph_and_no_others_do(bundle: Bundle) -> None:
    tokens, target = random_tokens(bundle, 16), opened(bundle)
    seen = watched(target, bundle)
    target.start(16)
    target.prefill(tokens[:5])
    for start, end in ((5, 6), (6, 8), (8, 12), (12, 13)):
        target.verify(tokens[start:end])
    assert [(call.graph, call.rows) for call in seen] == [
        ("guarded", 5),
        ("row", 1),
        ("guarded", 2),
        ("guarded", 4),
        ("row", 1),
    ]
    first = bundle.manifest.interface.layers[0]
    addresses = {call.memory[first.past_key].address for call in seen if call.graph == "row"}
    assert addresses == {target._buffers.values[0].data_ptr()}


@pytest.mark.parametrize("widths", [(1, 4, 1, 1, 3, 1), (2, 1, 1, 2, 1, 4)])
def test_graphs_that_take_turns_leave_the_cache_that_serial_decoding_leaves(
    bundle: Bundle, widths: tuple[int, ...]
) -> None:
    tokens = random_tokens(bundle, 7 + sum(widths))
    serial, target = SerialTarget.from_bundle(bundle, SPEC), opened(bundle)
    for each in (serial, target):
        each.start(len(tokens))
        each.prefill(tokens[:7])
    rows = [serial.verify([token]).tobytes() for token in tokens[7:]]
    at = 7
    for width in widths:
        logits = target.verify(tokens[at : at + width])
        assert [row.tobytes() for row in logits] == rows[at - 7 : at - 7 + width]
        at += width
    for index in range(2 * len(bundle.reference.contract.kv)):
        assert target.cached(index).tobytes() == serial.cached(index).tobytes()


def test_memory_that_grew_is_bound_anew_for_rows_alone(bundle: Bundle) -> None:
    tokens, target = random_tokens(bundle, 9), opened(bundle)
    rows = []
    for room in (9, 2000, 9):
        target.start(room)
        target.prefill(tokens[:8])
        rows.append(target.verify(tokens[8:]).tobytes())
    assert len(set(rows)) == 1


def test_a_session_that_is_there_already_is_used(bundle: Bundle) -> None:
    serial = SerialTarget.from_bundle(bundle, SPEC)
    target = open_target(bundle, SPEC, reference=serial.session)
    assert isinstance(target, BlockTarget)
    assert target._row_calls is not None
    assert target._row_calls.session is serial.session
    assert replayed(bundle, target).equal == EVERY_ROW


def test_lean_is_one_session(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **kwargs: Any) -> RowCalls:
        raise AssertionError("a second session is opened")

    monkeypatch.setattr("qbpass.runtime.open_target.open_row_calls", refused)
    target = open_target(bundle, SPEC, lean=True)
    assert isinstance(target, BlockTarget)
    seen = watched(target, bundle)
    tokens = random_tokens(bundle, 6)
    target.start(6)
    target.prefill(tokens[:5])
    target.verify(tokens[5:])
    assert [call.graph for call in seen] == ["guarded", "guarded"]


def test_a_cache_that_only_some_layers_share_has_no_row_calls(tmp_path: Path) -> None:
    from fused_graphs import Fused

    bundle = chained(tmp_path, Fused(), Fused("decomposed", heads=4, kv_heads=4, added="causal"))
    assert not bundle.appends_in_place
    assert opened(bundle)._row_calls is None


def test_siblings_share_the_session_of_rows_alone(bundle: Bundle) -> None:
    target = BlockTarget.from_bundle(bundle, SPEC, open_row_calls(bundle, SPEC))
    sibling = target.sibling(SPEC)
    assert target._row_calls is not None
    assert sibling._row_calls is target._row_calls
    tokens, rows = random_tokens(bundle, 8), []
    for each in (target, sibling):
        each.start(8)
        each.prefill(tokens[:6])
    for each in (target, sibling):
        rows.append([each.verify([token]).tobytes() for token in tokens[6:]])
    assert rows[0] == rows[1]
