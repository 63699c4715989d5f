"""Verification in calls of static shapes: what is exact here runs, and what is not is refused with a witness."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from chain_models import FORMS, SPEC, chained

from qbpass.evidence.forced_replay import ReplayCount, replay, serial_rows
from qbpass.models.errors import BundleError
from qbpass.models.session import PROVIDERS, SessionSpec
from qbpass.rewrites.bundle import Bundle, plan_for
from qbpass.rewrites.refused import RewriteRefused
from qbpass.rewrites.static_graph import static_graph
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.buffers import KVBuffers
from qbpass.runtime.endpoint import Endpoint
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.graph_cache import GraphCache, GraphKey
from qbpass.runtime.serial_target import SerialTarget
from qbpass.runtime.static_target import StaticSessions, StaticTarget, bucket
from qbpass.runtime.static_trial import open_static, static_trial

PROMPT = [*range(1, 16), 3, 1, 4, 1]


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return chained(tmp_path_factory.mktemp("chain"), FORMS["rows apart"])


@pytest.fixture(scope="module")
def sessions(chain: Bundle) -> StaticSessions:
    return StaticSessions.open(static_graph(chain.reference, plan_for(chain, "pq", SPEC)), SPEC, chain.weights)


@pytest.fixture(scope="module")
def serial(chain: Bundle) -> SerialTarget:
    return SerialTarget.from_bundle(chain, SPEC)


@pytest.fixture
def target(chain: Bundle, sessions: StaticSessions) -> StaticTarget:
    return StaticTarget(BlockTarget.from_bundle(chain, SPEC), sessions, SPEC, chain.manifest.phase_mask)


def test_an_attention_that_is_told_its_lengths_is_serial_in_buckets(chain: Bundle) -> None:
    _, trial = open_static(chain, SPEC)
    assert trial["verdict"] == "unknown"
    assert trial["rows"] == 3 * 4 * 9


def test_every_row_of_the_forced_replay_is_the_serial_one(target: StaticTarget, serial: SerialTarget) -> None:
    random = np.random.default_rng(1)
    prompt, tokens = (tuple(random.integers(0, serial.vocab_size, n).tolist()) for n in (240, 30))
    count = ReplayCount()
    replay(target, "static", prompt, tokens, serial_rows(serial, prompt, tokens), count)
    assert count.equal == count.rows > 200
    for index in range(2 * len(target.interface.layers)):
        assert target.cached(index).tobytes() == serial.cached(index)[: target.length].tobytes()


def test_the_engine_runs_on_it_as_on_any_target(target: StaticTarget, serial: SerialTarget) -> None:
    request = Request(tuple(PROMPT[:7]), max_new_tokens=20)
    endpoints: list[Endpoint] = [Engine(each).generate(request)[0] for each in (serial, target)]
    assert endpoints[0] == endpoints[1]
    assert target.graphs.made == 1
    assert target.graphs.reused == 18


def test_each_width_and_bucket_is_made_once_with_an_id_of_its_own(target: StaticTarget) -> None:
    ids = set()
    made = GraphCache.get

    def get(self: GraphCache[Any], key: GraphKey, make: Callable[[], Any]) -> Any:
        kept = made(self, key, make)
        if key.extent:  # bindings of the guarded graph read no bucket
            ids.add((kept.graph_id, key.width, key.extent))
        return kept

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GraphCache, "get", get)
        for _ in range(2):
            target.start(600)
            target.prefill(PROMPT)
            for width in (1, 2, 1, 2):
                target.verify([5] * width)
            target.prefill(PROMPT * 13)
            target.verify([5, 6])
    assert sorted((width, extent) for _, width, extent in ids) == [(1, 256), (2, 256), (2, 512)]
    assert len({graph_id for graph_id, _, _ in ids}) == 3


def test_a_call_repeated_as_a_capture_repeats_it_gives_the_same_logits_and_cache(target: StaticTarget) -> None:
    """ONNX Runtime runs the first call of a CUDA graph three times: state must be written from inputs alone."""
    target.start(64)
    target.prefill(PROMPT[:11])
    once = target.verify([3, 4, 5]).copy()
    buffers = [value.numpy().tobytes() for value in target._target.caches.values]
    (kept,) = target.graphs._kept.values()
    kept.value.capture(kept.graph_id)  # a CPU session takes the option, and captures nothing
    arrays = target._arrays([3, 4, 5], 11, 256)
    for _ in range(3):
        again = np.zeros_like(once)
        kept.value.run(arrays, again)
        assert again.tobytes() == once.tobytes()
        assert [value.numpy().tobytes() for value in target._target.caches.values] == buffers


def test_sums_over_masked_keys_are_proven_wrong_on_the_cpu_and_refused_with_the_witness(tiny_bundle: Bundle) -> None:
    with pytest.raises(
        RewriteRefused, match=r"keys bound by bucket are false on this machine: row 0 of 1 .*"
    ) as refused:
        open_static(tiny_bundle, SPEC)
    (trial,) = refused.value.trials
    assert trial["verdict"] == "false"
    assert trial["witness"]["max_abs_difference"] < 1e-4
    # A row's sum goes four keys at a time: the first extent that leaves three is the first that differs.
    assert (trial["witness"]["past"] + 1) % 4 == 3


def _static(bundle: Bundle, layout: Any) -> StaticTarget:
    plan = plan_for(bundle, layout, SPEC)
    sessions = StaticSessions.open(static_graph(bundle.reference, plan), SPEC, bundle.weights)
    return StaticTarget(BlockTarget.from_bundle(bundle, SPEC), sessions, SPEC, plan.phase_mask)


def test_rows_that_nothing_was_written_to_are_zeros_before_anything_reads_them(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New memory may hold NaNs, and a masked NaN is a NaN still; so may a request that went wrong leave some."""
    static = _static(tiny_bundle, "qb")
    reserve = KVBuffers.reserve

    def poisoned(self: KVBuffers, rows: int) -> None:
        before = self.capacity
        reserve(self, rows)
        if self.capacity != before:
            for value in self.values:
                value.update_inplace(np.full(value.shape(), np.nan, np.float32))

    monkeypatch.setattr(KVBuffers, "reserve", poisoned)
    for _ in range(2):
        static.start(40)
        static.prefill(PROMPT)
        assert np.isfinite(static.verify([1, 2])).all()
        for value in static._target.caches.values:
            value.update_inplace(np.full(value.shape(), np.nan, np.float32))
        assert np.isnan(static.verify([3])).all()  # that this is seen is what the next request lives on


def test_only_rows_behind_an_extent_of_the_measured_rule_differ(tiny_bundle: Bundle) -> None:
    """What is refused above is the kernel's sum and nothing else: masks, positions and slots are the call's own."""
    static = _static(tiny_bundle, "qb")
    serial = SerialTarget.from_bundle(tiny_bundle, SPEC)
    tokens = np.random.default_rng(0).integers(0, serial.vocab_size, 30).tolist()
    for past in range(20, 26):
        for each in (serial, static):
            each.start(40)
            each.prefill(tokens[:past])
        wanted = [serial.verify([token]).copy()[0] for token in tokens[past : past + 4]]
        for row, (got, want) in enumerate(zip(static.verify(tokens[past : past + 4]), wanted, strict=True)):
            touched = any(tiny_bundle.extents.exact(extent) for extent in range(past + 1, past + row + 2))
            assert (got.tobytes() != want.tobytes()) is touched
            assert np.abs(got - want).max() < 1e-4


@pytest.mark.parametrize("same", [{"extent": 0, "shapes": ()}, {"width": 0, "shapes": ()}, {"capacity": 0}])
def test_a_reuse_check_that_leaves_something_out_is_found(
    target: StaticTarget, serial: SerialTarget, monkeypatch: pytest.MonkeyPatch, same: dict[str, Any]
) -> None:
    right = GraphCache.get
    monkeypatch.setattr(GraphCache, "get", lambda self, key, make: right(self, replace(key, **same), make))
    monkeypatch.setattr(GraphCache, "clear", lambda self: None)
    old = []  # freed memory is not to be read, even by a wrong engine
    if "capacity" in same:
        target.start(64)
        target.prefill(PROMPT)
        target.verify([1])
        old = target._target.caches.values
        target.start(600)
        target.prefill(PROMPT)
        before = [value.numpy().tobytes() for value in target._target.caches.values]
        target.verify([1])
        assert [value.numpy().tobytes() for value in target._target.caches.values] == before  # it wrote elsewhere
        assert old
        return
    with pytest.raises(RuntimeError, match="does not match"):
        static_trial(serial, target)


def test_a_cache_that_grows_makes_its_graphs_anew_and_gives_the_old_ones_back(
    target: StaticTarget, serial: SerialTarget
) -> None:
    released: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "onnxruntime.InferenceSession.release_captured_graph", lambda self, number: released.append(number)
        )
        target.start(64)
        target.prefill(PROMPT)
        target.verify([1])
        (kept,) = target.graphs._kept.values()
        target.start(600)
        target.prefill(PROMPT)
        target.verify([1])
    assert target.graphs.made == 2
    assert len(target.graphs) == 1
    assert released == [kept.graph_id]
    assert static_trial(serial, target)["verdict"] == "unknown"


def test_a_phase_mask_without_verification_has_nothing_to_capture(chain: Bundle, sessions: StaticSessions) -> None:
    with pytest.raises(BundleError, match="phase mask 4 leaves verification native"):
        StaticTarget(BlockTarget.from_bundle(chain, SPEC), sessions, SPEC, 4)


@pytest.mark.parametrize(
    ("extent", "capacity", "size"),
    [(1, 1024, 256), (256, 1024, 256), (257, 1024, 512), (600, 768, 768), (600, 4096, 1024), (700, 768, 768)],
)
def test_buckets_are_powers_of_two_of_granules_up_to_all_there_is(extent: int, capacity: int, size: int) -> None:
    assert bucket(extent, capacity) == size


def test_capturing_is_an_option_of_the_cuda_provider_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: list(PROVIDERS.values()))
    assert SessionSpec("cuda", capture=True).provider_list() == [
        ("CUDAExecutionProvider", {"use_tf32": "0", "enable_cuda_graph": "1"})
    ]
    assert SessionSpec("cuda").provider_list() == [("CUDAExecutionProvider", {"use_tf32": "0"})]
    assert SessionSpec("cpu", capture=True).provider_list() == ["CPUExecutionProvider"]
