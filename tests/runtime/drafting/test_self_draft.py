"""A self draft proposes over the target's own cache, and leaves no trace in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from chain_models import FORMS as CHAINED
from chain_models import chained
from decoder_blocks import SPEC, random_tokens, serial_target
from lowered_models import FORMS as LOWERED
from lowered_models import lowered

from qbpass.models.export import cached_export
from qbpass.models.loading import load_decoder
from qbpass.models.session import open_session
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.self_draft.graph import one_row_graph
from qbpass.rewrites.self_draft.quantize import QuantForm
from qbpass.rewrites.self_draft.store import DraftError, open_draft, stored_draft
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.choosing import GREEDY, Chooser
from qbpass.runtime.drafter import Proposal
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.open_target import open_target
from qbpass.runtime.self_draft.drafter import SelfDrafter

INT8, INT4 = QuantForm(8, 8), QuantForm(4, 4)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QBPASS_CACHE", str(tmp_path_factory.getbasetemp() / "drafts"))


def block(bundle: Bundle) -> BlockTarget:
    target = open_target(bundle, SPEC)
    assert isinstance(target, BlockTarget)
    return target


def exact_drafter(bundle: Bundle, target: BlockTarget) -> SelfDrafter:
    """The one-row graph with its weights as they are."""
    chains = frozenset(chain.layer for chain in bundle.manifest.chains)
    graph = one_row_graph(bundle.reference, chains).SerializeToString()
    return SelfDrafter(open_session(graph, SPEC, weights=bundle.weights), target)


def quantized_drafter(bundle: Bundle, target: BlockTarget, form: QuantForm = INT8) -> SelfDrafter:
    return SelfDrafter(open_draft(bundle, stored_draft(bundle, form), SPEC), target, form.head_tokens)


def request_of(bundle: Bundle, tokens: int = 24) -> Request:
    return Request(random_tokens(bundle, 9, 3), max_new_tokens=tokens)


def kv_of(target: Any) -> list[bytes]:
    """The committed rows of every buffer."""
    return [target.cached(index).tobytes() for index in range(2 * len(target.interface.layers))]


class Watched:
    """A drafter whose target's committed rows are looked at before and after every proposal."""

    def __init__(self, drafter: SelfDrafter):
        self.drafter, self.start, self.extend = drafter, drafter.start, drafter.extend
        self.touched = self.proposals = 0

    def propose(self, limit: int, fork: Callable[[], Chooser]) -> Proposal:
        before = kv_of(self.drafter.target)
        proposal = self.drafter.propose(limit, fork)
        self.touched += kv_of(self.drafter.target) != before
        self.proposals += len(proposal.tokens)
        return proposal


@pytest.mark.parametrize("bundle", ["tiny_bundle", "tiny_sdpa_bundle"])
def test_with_its_weights_as_they_are_the_one_row_graph_is_right_in_every_proposal(
    bundle: str, request: pytest.FixtureRequest
) -> None:
    _drafts_right(request.getfixturevalue(bundle))


def test_it_drafts_for_onnx_attention_that_was_exported(tmp_path: Path) -> None:
    decoder = load_decoder(cached_export("builtin:tiny", "onnx"))
    _drafts_right(write_bundle(decoder, tmp_path / "bundle", "qb", SPEC)[0])


@pytest.mark.parametrize("form", ["onnx, joined outside, booleans", "mha, its own order", "onnx, its own order"])
def test_it_drafts_for_attention_that_was_spelled_out(form: str, tmp_path: Path) -> None:
    _drafts_right(lowered(tmp_path, LOWERED[form]))


@pytest.mark.parametrize("form", ["rows apart", "packed, rotary inside", "a window", "half precision"])
def test_it_drafts_over_the_buffers_that_a_chain_shares(form: str, tmp_path: Path) -> None:
    _drafts_right(chained(tmp_path, CHAINED[form]))


def _drafts_right(bundle: Bundle) -> None:
    target = block(bundle)
    endpoint, trace = Engine(target, exact_drafter(bundle, target)).generate(request_of(bundle))
    assert endpoint == Engine(serial_target(bundle)).generate(request_of(bundle))[0]
    assert trace.rejected == 0
    assert trace.accepted > 10


@pytest.mark.parametrize("form", [INT8, INT4, QuantForm(4, 8, head_tokens=100)], ids=lambda form: form.name)
def test_quantized_it_changes_no_token_and_no_committed_row(tiny_sdpa_bundle: Bundle, form: QuantForm) -> None:
    target = block(tiny_sdpa_bundle)
    watched = Watched(quantized_drafter(tiny_sdpa_bundle, target, form))
    request = request_of(tiny_sdpa_bundle, 40)
    endpoint, _ = Engine(target, watched).generate(request)
    serial = serial_target(tiny_sdpa_bundle)
    assert endpoint == Engine(serial).generate(request)[0]
    assert watched.proposals > 10
    assert watched.touched == 0
    layers = range(2 * len(target.interface.layers))
    assert kv_of(target) == [serial.cached(index).tobytes() for index in layers]


def test_in_eight_bits_its_logits_are_nearly_those_of_its_weights_as_they_are(tiny_sdpa_bundle: Bundle) -> None:
    """Weights of several products lie side by side in one, and each product has its own columns back."""
    target = block(tiny_sdpa_bundle)
    rows = []
    for drafter in (exact_drafter(tiny_sdpa_bundle, target), quantized_drafter(tiny_sdpa_bundle, target)):
        target.start(32)
        target.prefill(random_tokens(tiny_sdpa_bundle, 9))
        drafter.start((), 32)
        rows.append(drafter._step(3, 9).copy())
    assert np.corrcoef(rows)[0, 1] > 0.99


class Early(SelfDrafter):
    """Writes one row too early, past the target's own check."""

    def _step(self, token: int, row: int) -> np.ndarray:
        length, self.target._length = self.target._length, 0
        try:
            return super()._step(token, row - 1)
        finally:
            self.target._length = length


def test_a_draft_that_writes_a_committed_row_is_seen(tiny_sdpa_bundle: Bundle) -> None:
    """The comparison above can fail."""
    target = block(tiny_sdpa_bundle)
    watched = Watched(Early(quantized_drafter(tiny_sdpa_bundle, target).session, target))
    request = request_of(tiny_sdpa_bundle, 40)
    Engine(target, watched).generate(request)
    serial = serial_target(tiny_sdpa_bundle)
    Engine(serial).generate(request)
    assert watched.touched > 0
    layers = range(2 * len(target.interface.layers))
    assert kv_of(target) != [serial.cached(index).tobytes() for index in layers]


def test_a_committed_row_is_not_lent(tiny_sdpa_bundle: Bundle) -> None:
    target = block(tiny_sdpa_bundle)
    drafter = quantized_drafter(tiny_sdpa_bundle, target)
    target.start(16)
    target.prefill(random_tokens(tiny_sdpa_bundle, 5))
    drafter.start((), 16)
    with pytest.raises(ValueError, match="row 4 is committed"):
        drafter._step(1, 4)


class Recorded:
    """A chooser that picks the largest logit but for every third position, and counts what it is told."""

    def __init__(self, position: int = 0) -> None:
        self.position = position

    def choose(self, logits_V: np.ndarray) -> int:
        return int(logits_V.argsort()[-1 - (self.position % 3 == 2)])

    def advance(self, token: int) -> None:
        self.position += 1

    def fork(self) -> Recorded:
        return Recorded(self.position)


class Rule:
    def begin(self, prompt: Sequence[int], vocab_size: int) -> Recorded:
        del prompt, vocab_size
        return Recorded()


def test_it_proposes_by_a_fork_of_the_targets_own_rule(tiny_sdpa_bundle: Bundle) -> None:
    target = block(tiny_sdpa_bundle)
    request = Request(random_tokens(tiny_sdpa_bundle, 9, 3), max_new_tokens=24, choosing=Rule())
    endpoint, trace = Engine(target, exact_drafter(tiny_sdpa_bundle, target)).generate(request)
    assert endpoint == Engine(serial_target(tiny_sdpa_bundle)).generate(request)[0]
    assert trace.rejected == 0
    assert trace.accepted > 10


def test_it_stops_where_its_logits_are_not_numbers(tiny_sdpa_bundle: Bundle) -> None:
    target = block(tiny_sdpa_bundle)
    drafter = quantized_drafter(tiny_sdpa_bundle, target)
    target.start(32)
    target.prefill(random_tokens(tiny_sdpa_bundle, 5))
    drafter.start((), 32)
    drafter.extend((1,))
    step, asked = drafter._step, []

    def broken(token: int, row: int) -> np.ndarray:
        asked.append(row)
        logits = step(token, row)
        return np.full_like(logits, np.nan) if row == 6 else logits

    drafter._step = broken  # type: ignore[method-assign]
    assert len(drafter.propose(4, GREEDY.fork).tokens) == 1
    assert asked == [5, 6]


def test_it_proposes_nothing_before_there_is_a_pending_token(tiny_sdpa_bundle: Bundle) -> None:
    drafter = quantized_drafter(tiny_sdpa_bundle, block(tiny_sdpa_bundle))
    drafter.start((1, 2), 16)
    assert drafter.propose(3, GREEDY.fork) == Proposal()


def test_a_decoder_without_float_products_has_no_draft(tmp_path: Path, tiny_sdpa_bundle: Bundle) -> None:
    quantized = onnx.load(stored_draft(tiny_sdpa_bundle, INT8) / "draft.onnx", load_external_data=False)
    with pytest.raises(DraftError, match="no float32 product to quantize"):
        stored_draft(tiny_sdpa_bundle, INT4, fresh=True, graph=quantized)
