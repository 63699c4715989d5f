"""The same claims on CUDA. Skipped where there is no GPU: until they have run on one, that path is unverified."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from chain_models import FORMS, exported
from cuda_device import has_gpu

from qbpass.admission.placement import observe_placement
from qbpass.evidence.forced_replay import ReplayCount, replay, serial_rows
from qbpass.evidence.phase_faults import phase_faults
from qbpass.models.errors import ProviderError
from qbpass.models.freeze import freeze
from qbpass.models.loading import load_decoder
from qbpass.models.session import SessionSpec, open_session
from qbpass.rewrites.bundle import check_recipe
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.planner import RewriteRefused
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.placed_session import stray_nodes
from qbpass.runtime.serial_target import SerialTarget
from qbpass.runtime.static_trial import open_static

HAS_PROVIDER = "CUDAExecutionProvider" in ort.get_available_providers()
CUDA = SessionSpec(provider="cuda", threads=2)

needs_cuda = pytest.mark.skipif(not has_gpu(), reason="there is no GPU that this onnxruntime runs on")


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("layout", ["qb", "pq"])
def test_every_row_on_cuda_is_the_serial_row_or_the_layout_is_refused_with_a_witness(
    tiny_eager: Path, tmp_path: Path, layout: str
) -> None:
    try:
        bundle, _, _ = write_bundle(load_decoder(tiny_eager), tmp_path / "bundle", layout, CUDA)  # type: ignore[arg-type]
    except RewriteRefused as refused:
        assert refused.trials[-1]["witness"] is not None  # noqa: PT017
        return
    check_recipe(bundle, CUDA)
    reference, target = SerialTarget.from_frozen(bundle.reference, CUDA), BlockTarget.from_bundle(bundle, CUDA)
    prompt, tokens = tuple(range(1, 30)), tuple(range(40, 60))
    wanted = serial_rows(reference, prompt, tokens)
    count = ReplayCount()
    replay(target, "cuda", prompt, tokens, wanted, count)
    assert count.equal == count.rows > 0
    assert target.cached(0).tobytes() == reference.cached(0)[: target.length].tobytes()


@pytest.mark.gpu
@needs_cuda
def test_a_fused_attention_on_cuda_is_evaluated_query_by_query_or_refused_with_a_witness(tmp_path: Path) -> None:
    """Its operator takes float16 there, and appends in place only in memory of the device."""
    try:
        decoder = load_decoder(exported(tmp_path, FORMS["half precision"]))
        bundle, _, _ = write_bundle(decoder, tmp_path / "bundle", "pq", CUDA)
    except RewriteRefused as refused:
        assert refused.trials[-1]["witness"] is not None  # noqa: PT017
        return
    reference, target = SerialTarget.from_bundle(bundle, CUDA), BlockTarget.from_bundle(bundle, CUDA)
    prompt, tokens = tuple(range(1, 12)), tuple(range(2, 15))
    count = ReplayCount()
    replay(target, "cuda", prompt, tokens, serial_rows(reference, prompt, tokens), count)
    assert count.equal == count.rows > 0
    assert {value.device_name() for value in target.caches.values} == {"cuda"}


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize(("form", "layout"), [(None, "qb"), ("half precision", "pq")])
def test_captured_verification_is_serial_in_every_row_or_refused_with_a_witness(
    tiny_eager: Path, tmp_path: Path, form: str | None, layout: str
) -> None:
    try:
        decoder = load_decoder(tiny_eager if form is None else exported(tmp_path, FORMS[form]))
        bundle, _, _ = write_bundle(decoder, tmp_path / "bundle", layout, CUDA)  # type: ignore[arg-type]
        static, trial = open_static(bundle, CUDA)
    except RewriteRefused as refused:
        assert refused.trials[-1]["witness"] is not None  # noqa: PT017
        return
    assert static.captures
    assert trial["verdict"] == "unknown"
    reference = SerialTarget.from_bundle(bundle, CUDA)
    prompt, tokens = tuple(range(1, 12)), tuple(range(2, 15))
    count = ReplayCount()
    replay(static, "cuda", prompt, tokens, serial_rows(reference, prompt, tokens), count)
    assert count.equal == count.rows > 0


@pytest.mark.gpu
@needs_cuda
def test_faults_of_the_phase_guard_are_found_on_cuda_too(tiny_eager: Path, tmp_path: Path) -> None:
    bundle, _, _ = write_bundle(load_decoder(tiny_eager), tmp_path / "bundle", "qb", CUDA)
    assert phase_faults(bundle, CUDA).passed


@pytest.mark.gpu
@needs_cuda
def test_nothing_but_arithmetic_on_sizes_is_left_to_the_cpu(tiny_eager: Path, tmp_path: Path) -> None:
    """open_placed raises where something is; here is what it saw."""
    frozen = freeze(load_decoder(tiny_eager), tmp_path / "frozen", CUDA)
    placement = observe_placement(frozen, CUDA)
    assert placement.assigned is not None
    assert "CUDAExecutionProvider" in {node.provider for node in placement.assigned}
    assert stray_nodes(placement.assigned, frozen.model, placement.asked) == []


@pytest.mark.gpu
@needs_cuda
def test_the_cache_stays_on_the_device(tiny_eager: Path, tmp_path: Path) -> None:
    bundle, _, _ = write_bundle(load_decoder(tiny_eager), tmp_path / "bundle", "qb", CUDA)
    target = BlockTarget.from_bundle(bundle, CUDA)
    target.start(64)
    target.prefill(range(1, 20))
    assert {value.device_name() for value in target.caches.values} == {"cuda"}
    assert np.isfinite(target.cached(0)).all()


@pytest.mark.skipif(HAS_PROVIDER, reason="this onnxruntime has the CUDA provider")
def test_a_provider_that_is_not_there_is_an_error_that_says_what_to_install(tiny_eager: Path) -> None:
    with pytest.raises(ProviderError, match=r"CUDAExecutionProvider is not in this onnxruntime .* qbpass\[cuda\]"):
        open_session(load_decoder(tiny_eager).path, CUDA)


@pytest.mark.skipif(not HAS_PROVIDER or has_gpu(), reason="needs onnxruntime-gpu on a machine without a GPU")
def test_a_wheel_with_the_provider_and_no_gpu_is_an_error_and_not_a_session_on_the_cpu(tiny_eager: Path) -> None:
    with pytest.raises(ProviderError, match=r"was asked for and did not load .* nvidia-smi shows a GPU"):
        open_session(load_decoder(tiny_eager).path, CUDA, optimize=True)
