"""A second provider, which compiles what it is given: asked for by name, never replaced by another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tiny_graphs import save, tiny_decoder

from qbpass.models.decoder import Decoder
from qbpass.models.errors import ProviderError
from qbpass.models.freeze import freeze
from qbpass.models.loading import load_decoder
from qbpass.models.recipe import recipe_of
from qbpass.models.session import SessionSpec, open_session

OPENVINO = SessionSpec(provider="openvino", threads=2)
HAS_OPENVINO = "OpenVINOExecutionProvider" in onnxruntime.get_available_providers()
needs_openvino = pytest.mark.skipif(not HAS_OPENVINO, reason="this ONNX Runtime lacks the OpenVINO provider")


@pytest.fixture
def decoder(tmp_path: Path) -> Decoder:
    save(tiny_decoder(2), tmp_path / "source")
    return load_decoder(tmp_path / "source")


def logits(session: Any, queries: int, past: int) -> bytes:
    random = np.random.default_rng(0)
    feeds = {
        "input_ids": random.integers(0, 50, (1, queries)),
        "attention_mask": np.ones((1, past + queries), np.int64),
        "position_ids": np.arange(past, past + queries)[None],
    }
    for entry in session.get_inputs():
        if entry.name not in feeds:
            shape = (1, entry.shape[1], past, entry.shape[3])
            feeds[entry.name] = random.standard_normal(shape, dtype=np.float32)
    return bytes(session.run(None, feeds)[0].tobytes())


@pytest.mark.skipif(HAS_OPENVINO, reason="this ONNX Runtime has the OpenVINO provider")
def test_a_graph_is_not_frozen_for_a_provider_that_is_not_there(decoder: Decoder, tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match="OpenVINOExecutionProvider is not in this onnxruntime"):
        freeze(decoder, tmp_path / "frozen", OPENVINO)
    assert not (tmp_path / "frozen").exists()


@needs_openvino
def test_the_frozen_graph_gives_the_bits_of_the_default_session(decoder: Decoder, tmp_path: Path) -> None:
    frozen = freeze(decoder, tmp_path / "frozen", OPENVINO)
    ours, default = (
        open_session(frozen.path, OPENVINO, weights=frozen.weights),
        open_session(decoder.path, OPENVINO, optimize=True),
    )
    for queries, past in ((1, 5), (4, 5), (1, 33)):
        assert logits(ours, queries, past) == logits(default, queries, past)


@needs_openvino
def test_the_recipe_names_the_device_its_threads_and_the_level(decoder: Decoder, tmp_path: Path) -> None:
    recipe = recipe_of(freeze(decoder, tmp_path / "frozen", OPENVINO), OPENVINO)
    assert recipe.provider == "OpenVINOExecutionProvider"
    assert recipe.provider_options == {"device_type": "CPU", "num_of_threads": "2"}
    assert recipe.optimization_level == "basic, frozen"
