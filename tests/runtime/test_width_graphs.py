"""A graph for each number of rows: the same rows over the same memory, and no link that a call does not need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from chain_models import FORMS, chained, exported
from decoder_blocks import SPEC, random_tokens, replayed

from qbpass.evidence.observed_calls import ObservedCall, ObservedSession
from qbpass.models.loading import load_decoder
from qbpass.rewrites import width_graphs as module
from qbpass.rewrites.apply import rewrite_graph
from qbpass.rewrites.bundle import Bundle, open_bundle
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.refused import RewriteRefused
from qbpass.rewrites.width_graphs import width_file
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.open_target import open_target
from qbpass.runtime.serial_target import SerialTarget
from qbpass.runtime.whole_trial import whole_trial

EVERY_ROW = 13 * (1 + 2 + 3 + 4)


@pytest.fixture(scope="module", params=["packed, rotary inside", "a bias on the scores", "half precision"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return chained(tmp_path_factory.mktemp("widths"), FORMS[request.param], emit="widths")


def opened(bundle: Bundle, *, lean: bool = False) -> tuple[BlockTarget, list[ObservedCall]]:
    target = open_target(bundle, SPEC, lean=lean)
    assert isinstance(target, BlockTarget)
    seen: list[ObservedCall] = []
    token_ids = bundle.manifest.interface.input_ids
    target.watch(lambda session, graph: ObservedSession(session, graph, token_ids, seen.append))
    return target, seen


@pytest.mark.parametrize("lean", [False, True])
def test_every_row_is_the_serial_one(bundle: Bundle, lean: bool) -> None:
    count = replayed(bundle, open_target(bundle, SPEC, lean=lean))
    assert count.equal == count.rows == EVERY_ROW


def test_a_graph_has_as_many_links_as_rows(bundle: Bundle) -> None:
    layers = len(bundle.reference.contract.kv)
    for rows in (2, 3, 4):
        model = onnx.ModelProto.FromString(bundle.graph(width_file(rows)))
        assert sum(node.op_type == "GroupQueryAttention" for node in model.graph.node) == rows * layers


def test_a_call_runs_the_graph_of_its_rows_and_prefill_and_the_native_layout_the_guarded_one(bundle: Bundle) -> None:
    tokens, (target, seen) = random_tokens(bundle, 20), opened(bundle)
    native = target.native(SPEC)
    for each in (target, native):
        each.start(20)
        each.prefill(tokens[:4])
        for start, end in ((4, 5), (5, 7), (7, 10), (10, 14)):
            each.verify(tokens[start:end])
    graphs = [(call.graph, call.phase is None) for call in seen]
    active = [("row", True), ("rows2", True), ("rows3", True), ("rows4", True)]
    assert graphs == [("guarded", False), *active, ("guarded", False), ("row", True), *[("guarded", False)] * 3]


def test_graphs_that_take_turns_leave_the_cache_that_serial_decoding_leaves(bundle: Bundle) -> None:
    widths = (1, 4, 2, 1, 3, 3, 2, 4)
    tokens = random_tokens(bundle, 7 + sum(widths))
    serial, target = SerialTarget.from_bundle(bundle, SPEC), open_target(bundle, SPEC)
    assert isinstance(target, BlockTarget)
    for each in (serial, target):
        each.start(len(tokens))
        each.prefill(tokens[:7])
    for token in tokens[7:]:
        serial.verify([token])
    at = 7
    for width in widths:
        target.verify(tokens[at : at + width])
        at += width
    for index in range(2 * len(bundle.reference.contract.kv)):
        assert target.cached(index).tobytes() == serial.cached(index).tobytes()


def test_lean_is_the_guarded_graph_alone(bundle: Bundle) -> None:
    tokens, (target, seen) = random_tokens(bundle, 8), opened(bundle, lean=True)
    target.start(8)
    target.prefill(tokens[:4])
    target.verify(tokens[4:6])
    assert [call.graph for call in seen] == ["guarded", "guarded"]


def test_a_graph_that_is_false_leaves_no_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links told that they are a row further than they are. The guarded graph is right: what is tried is each width."""
    monkeypatch.setattr(module, "rewrite_graph", _one_key_further(rewrite_graph))
    monkeypatch.setattr(module, "audit_chains", lambda *arguments: {})
    decoder = load_decoder(exported(tmp_path, FORMS["rows apart"]))
    with pytest.raises(RewriteRefused, match="the whole decoder in layout pq is false here"):
        write_bundle(
            decoder,
            tmp_path / "bundle",
            "pq",
            SPEC,
            emit="widths",
            machine=lambda written, timed: whole_trial(written, timed, SPEC),
        )
    assert not (tmp_path / "bundle").exists()


def test_an_audit_finds_it_before_anything_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "rewrite_graph", _one_key_further(rewrite_graph))
    decoder = load_decoder(exported(tmp_path, FORMS["packed, rotary inside"]))
    with pytest.raises(RewriteRefused, match="link"):
        write_bundle(decoder, tmp_path / "bundle", "pq", SPEC, emit="widths")


def _one_key_further(rewrite: Callable[..., onnx.ModelProto]) -> Callable[..., onnx.ModelProto]:
    def broken(*arguments: Any) -> onnx.ModelProto:
        model = rewrite(*arguments)
        for node in model.graph.node:
            if node.op_type == "Sub" and node.name.endswith("rows_behind"):
                node.input[0], node.input[1] = node.input[1], node.input[0]
        return model

    return broken


def test_a_bundle_tells_that_a_graph_was_changed(tmp_path: Path) -> None:
    from qbpass.models.errors import BundleError

    bundle = chained(tmp_path, FORMS["rows apart"], emit="widths")
    (bundle.folder / width_file(3)).write_bytes((bundle.folder / width_file(2)).read_bytes())
    with pytest.raises(BundleError, match=r"decoder\.rows3\.onnx"):
        open_target(open_bundle(bundle.folder), SPEC)


def test_decoders_with_separate_products_are_refused(tiny_eager: Path, tmp_path: Path) -> None:
    with pytest.raises(RewriteRefused, match="--emit widths is for decoders whose every attention is a fused operator"):
        write_bundle(load_decoder(tiny_eager), tmp_path / "bundle", "gs", SPEC, emit="widths")
