"""GS as a graph, GS as micro-batches and serial decoding give the same bytes, whatever the attention is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from decoder_blocks import SPEC, random_tokens, replayed, serial_target

from qbpass.models.errors import BundleError
from qbpass.models.export import cached_export
from qbpass.models.loading import load_decoder
from qbpass.rewrites import gs_graph as gs_module
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.manifest import Emit
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.call_error import CallError
from qbpass.runtime.choosing import Chooser
from qbpass.runtime.cropped_target import CroppedTarget
from qbpass.runtime.drafter import Proposal
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.gs_target import GSTarget
from qbpass.runtime.micro_batches import MicroBatchTarget
from qbpass.runtime.open_target import open_target
from qbpass.runtime.phase_guard import Stage
from qbpass.runtime.serial_target import SerialTarget

Write = Callable[..., Bundle]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """A GS bundle of the tiny model, each kind written once."""
    made: dict[tuple[Any, ...], Bundle] = {}

    def write(attention: str = "eager", prefill: str = "whole", emit: Emit = "guarded") -> Bundle:
        key = (attention, prefill, emit)
        if key not in made:
            folder = tmp_path_factory.mktemp("bundles") / "gs"
            decoder = load_decoder(cached_export("builtin:tiny", attention))
            made[key] = write_bundle(decoder, folder, "gs", SPEC, prefill=prefill, emit=emit)[0]
        return made[key]

    return write


def micro_batches(bundle: Bundle) -> MicroBatchTarget:
    return MicroBatchTarget.over(serial_target(bundle), SPEC, bundle.manifest.max_queries)


def kv(target: SerialTarget) -> list[bytes]:
    return [target.cached(index).tobytes() for index in range(2 * len(target.contract.kv))]


def behind_a_mixed_request(target: CroppedTarget, bundle: Bundle) -> tuple[bytes, list[bytes]]:
    """Every row of logits that is kept, and the KV cache, of blocks of all widths with rejected rows between."""
    prompt, right, wrong = (random_tokens(bundle, n, seed) for n, seed in ((11, 1), (20, 2), (20, 3)))
    target.start(64)
    rows = [target.prefill(prompt)]
    fed = 0
    for width, keep in ((4, 4), (3, 1), (1, 1), (4, 2), (2, 2), (4, 0), (4, 3)):
        past = target.length
        target.verify(wrong[:width])
        target.rollback(past)
        rows.append(target.verify(right[fed : fed + width])[:keep].copy())
        target.rollback(past + keep)
        fed += keep
    return np.concatenate(rows).tobytes(), kv(target)


def serially(bundle: Bundle, rows: int) -> tuple[bytes, list[bytes]]:
    prompt, right = random_tokens(bundle, 11, 1), random_tokens(bundle, 20, 2)
    target = serial_target(bundle)
    target.start(64)
    kept = [target.prefill(prompt), *(target.verify([token]).copy() for token in right[:rows])]
    return np.concatenate(kept).tobytes(), kv(target)


@pytest.mark.parametrize("attention", ["eager", "sdpa", "onnx"])
def test_the_graph_the_micro_batches_and_serial_decoding_agree_in_logits_and_kv(written: Write, attention: str) -> None:
    bundle = written(attention)
    wanted = serially(bundle, 13)
    assert behind_a_mixed_request(GSTarget.from_bundle(bundle, SPEC), bundle) == wanted
    assert behind_a_mixed_request(micro_batches(bundle), bundle) == wanted


@pytest.mark.parametrize("attention", ["eager", "onnx"])
def test_every_width_at_every_alignment_equals_serial_and_native_does_not(written: Write, attention: str) -> None:
    bundle = written(attention)
    target = GSTarget.from_bundle(bundle, SPEC)
    for each in (target, micro_batches(bundle)):
        count = replayed(bundle, each)
        assert count.equal == count.rows == 13 * (1 + 2 + 3 + 4)
    native = replayed(bundle, target.native(SPEC))
    assert native.equal < native.rows


@pytest.mark.parametrize("prefill", ["whole", "chunks:12", "one"])
@pytest.mark.parametrize("emit", ["guarded", "specialized"])
def test_a_prompt_is_read_to_the_references_bytes_in_every_recipe(written: Write, prefill: str, emit: Emit) -> None:
    bundle = written("eager", prefill, emit)
    prompt = random_tokens(bundle, 37, 3)
    found = []
    for target in (GSTarget.from_bundle(bundle, SPEC), micro_batches(bundle), serial_target(bundle)):
        target.start(40)
        found.append((target.prefill(prompt).tobytes(), kv(target)))
    assert found[0] == found[1] == found[2]
    count = replayed(bundle, GSTarget.from_bundle(bundle, SPEC), prompt)
    assert count.equal == count.rows > 0


def test_a_one_by_one_prompt_is_fed_a_block_a_call_where_the_mask_has_its_bit(written: Write) -> None:
    assert GSTarget.from_bundle(written("eager", "one"), SPEC).prefill_rows == 4
    assert GSTarget.from_bundle(written("eager", "whole"), SPEC).prefill_rows is None


@pytest.mark.parametrize(("table", "phase"), [([True] * 16, "prefill"), ([False] * 16, "continuation")])
def test_a_graph_that_ignores_its_mask_is_not_the_reference(
    written: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, table: list[bool], phase: str
) -> None:
    """Active in a whole prefill its keys are others; never active its blocks' rows are."""
    monkeypatch.setattr(gs_module, "guard_table", lambda mask: table)
    bundle = write_bundle(written().reference, tmp_path / "broken", "gs", SPEC)[0]
    target, serial = GSTarget.from_bundle(bundle, SPEC), serial_target(bundle)
    prompt = random_tokens(bundle, 37, 3)
    for each in (target, serial):
        each.start(40)
        each.prefill(prompt)
    assert (kv(target) != kv(serial)) == (phase == "prefill")
    count = replayed(bundle, target, prompt)
    assert count.equal < count.rows


class HalfRight:
    """Proposes the reference's continuation, every third token replaced."""

    def __init__(self, continuation: tuple[int, ...], vocab_size: int):
        self.continuation, self.vocab_size = continuation, vocab_size

    def start(self, tokens: tuple[int, ...], rows: int) -> None:
        self.seen = 0

    def extend(self, tokens: tuple[int, ...]) -> None:
        self.seen += len(tokens)

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        ahead = enumerate(self.continuation[self.seen : self.seen + limit], self.seen)
        return Proposal(tuple((token + (index % 3 == 0)) % self.vocab_size for index, token in ahead))


@pytest.mark.parametrize("kind", ["graph", "micro-batches"])
def test_speculation_returns_the_reference_and_leaves_its_kv(written: Write, kind: str) -> None:
    bundle = written()
    target = GSTarget.from_bundle(bundle, SPEC) if kind == "graph" else micro_batches(bundle)
    serial, request = serial_target(bundle), Request(random_tokens(bundle, 12, 9), max_new_tokens=30)
    wanted, _ = Engine(serial).generate(request)
    got, trace = Engine(target, HalfRight(wanted.token_ids, target.vocab_size)).generate(request)
    assert got == wanted
    assert trace.accepted > 0
    assert trace.rows_rolled_back > 0
    assert kv(target) == kv(serial)


@pytest.mark.parametrize("kind", ["graph", "micro-batches"])
def test_blocks_and_rollbacks_are_bounded(written: Write, kind: str) -> None:
    bundle = written()
    target = GSTarget.from_bundle(bundle, SPEC) if kind == "graph" else micro_batches(bundle)
    target.start(20)
    target.prefill([1, 2, 3])
    for rows in (0, 5):
        with pytest.raises(ValueError, match=f"{rows} rows asked"):
            target.verify([1] * rows)
    for length in (-1, 4):
        with pytest.raises(ValueError, match="can't roll back from 3"):
            target.rollback(length)
    assert target.length == 3


def test_a_failed_call_gives_the_stage_back_and_the_next_request_is_as_if_it_never_was(written: Write) -> None:
    target = GSTarget.from_bundle(written(), SPEC)
    request = Request((1, 2, 3), max_new_tokens=6)
    wanted = Engine(target).generate(request)[0]
    target.start(20)
    target.prefill([1, 2, 3])
    with pytest.raises(CallError):
        target.verify([target.vocab_size + 5])
    assert target.guard.stage is Stage.PREFILL
    assert target.length == 3
    assert Engine(target).generate(request)[0] == wanted


def test_native_and_draft_share_the_session_and_not_the_cache(written: Write) -> None:
    target = GSTarget.from_bundle(written(), SPEC)
    for other in (target.native(SPEC), target.draft(SPEC, None)):
        assert other.session is target.session
        for each, prompt in ((target, [1, 2, 3]), (other, [4, 5, 6])):
            each.start(9)
            each.prefill(prompt)
        assert kv(target) != kv(other)


def test_a_bundle_is_run_by_the_target_of_its_layout(written: Write, tiny_bundle: Bundle) -> None:
    assert isinstance(open_target(written(), SPEC), GSTarget)
    assert isinstance(open_target(tiny_bundle, SPEC), BlockTarget)
    with pytest.raises(BundleError, match="of layout gs: open it with open_target"):
        BlockTarget.from_bundle(written(), SPEC)


def test_a_changed_graph_is_refused(written: Write, tmp_path: Any) -> None:
    import shutil

    from qbpass.rewrites.bundle import open_bundle

    shutil.copytree(written().folder, tmp_path / "copy")
    (tmp_path / "copy" / "decoder.onnx").write_bytes(b"other")
    with pytest.raises(BundleError, match="not the file the manifest names"):
        open_target(open_bundle(tmp_path / "copy"), SPEC)
