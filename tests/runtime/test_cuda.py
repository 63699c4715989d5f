"""The same claims on CUDA. Skipped where there is no GPU: until they have run on one, that path is unverified."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from chain_models import FORMS, exported

from qbpass.evidence.forced_replay import ReplayCount, replay, serial_rows
from qbpass.models.errors import ProviderError
from qbpass.models.loading import load_decoder
from qbpass.models.session import SessionSpec, open_session
from qbpass.rewrites.bundle import check_recipe
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.planner import RewriteRefused
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.serial_target import SerialTarget

HAS_CUDA = "CUDAExecutionProvider" in ort.get_available_providers()
CUDA = SessionSpec(provider="cuda", threads=2)

needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="this onnxruntime has no CUDA provider")


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
    assert {value.device_name() for value in target._buffers.values} == {"cuda"}


@pytest.mark.gpu
@needs_cuda
def test_the_cache_stays_on_the_device(tiny_eager: Path, tmp_path: Path) -> None:
    bundle, _, _ = write_bundle(load_decoder(tiny_eager), tmp_path / "bundle", "qb", CUDA)
    target = BlockTarget.from_bundle(bundle, CUDA)
    target.start(64)
    target.prefill(range(1, 20))
    assert {value.device_name() for value in target._buffers.values} == {"cuda"}
    assert np.isfinite(target.cached(0)).all()


@pytest.mark.skipif(HAS_CUDA, reason="this onnxruntime has the CUDA provider")
def test_a_provider_that_is_not_there_is_an_error_that_says_what_to_install(tiny_eager: Path) -> None:
    with pytest.raises(ProviderError, match=r"CUDAExecutionProvider is not in this onnxruntime .* qbpass\[cuda\]"):
        open_session(load_decoder(tiny_eager).path, CUDA)
