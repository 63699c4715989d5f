"""An exported family computes what torch computes, in calls of any size; what can't be exported says why in a line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from expected import NOT_LOADED
from family_graphs import QUICK, family_graph
from family_models import build, torch

from qbpass.models.errors import ExportError
from qbpass.models.export import export_source
from qbpass.models.export.cache_tensors import cache_tensors
from qbpass.models.export.tiny import byte_tokenizer

CALLS = (5, 1, 1, 3, 2, 4)  # tokens a call: a prompt, then steps and blocks; past the window of those that have one
TOLERANCE = 1e-5  # of two libraries' sums in different orders, over logits of 2 to 5


def decode(graph: Path, ids: np.ndarray) -> np.ndarray:
    """Logits (1, tokens, vocabulary) of `ids` (1, tokens), in calls of CALLS."""
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    inputs = {value.name: value for value in session.get_inputs()}
    past = {
        name: np.zeros([0 if isinstance(dim, str) else dim for dim in value.shape], np.float32)
        for name, value in inputs.items()
        if name.startswith("past_key_values.")
    }
    start, rows = 0, []
    for count in CALLS:
        end = start + count
        tokens = {
            "input_ids": ids[:, start:end],
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(start, end)[None],
        }
        feed = {name: value for name, value in tokens.items() if name in inputs} | past
        outputs = dict(zip([value.name for value in session.get_outputs()], session.run(None, feed), strict=True))
        rows.append(outputs["logits"])
        past = {name: outputs[name.replace("past_key_values", "present")] for name in past}
        start = end
    return np.concatenate(rows, axis=1)


EXPORTED = [(family, "dynamo-eager") for family in sorted(QUICK["dynamo-eager"] - NOT_LOADED)]
EXPORTED += [(family, "dynamo-sdpa") for family in sorted(QUICK["dynamo-sdpa"] - {"whisper"})]


@pytest.mark.parametrize(("family", "exporter"), EXPORTED)
def test_an_export_computes_what_torch_computes(family: str, exporter: str) -> None:
    ids = np.random.default_rng(0).integers(0, 120, (1, sum(CALLS)))
    with torch.no_grad():
        whole = build(family, "eager")(torch.tensor(ids)).logits.numpy()
    assert np.abs(decode(family_graph(family, exporter), ids) - whole).max() < TOLERANCE


@pytest.mark.parametrize(
    ("family", "kept"),
    [
        ("falcon", [("key", 1, 16), ("value", 1, 16)]),  # multi-query: a single head
        ("deepseek_v3", [("key", 1, 16), ("value", 1, 8)]),  # latents, and the rotated part of the keys
        ("mistral", [("key", 2, 16), ("value", 2, 16)]),  # behind a sliding window all is kept: the mask hides it
    ],
)
def test_a_cache_is_what_the_model_leaves_in_it(family: str, kept: list[tuple[str, int, int]]) -> None:
    found = [tensor for tensor in cache_tensors(build(family)) if tensor.layer == 0]
    assert [(tensor.part, tensor.shape) for tensor in found] == [(part, (1, h, None, d)) for part, h, d in kept]


def test_a_hybrid_keeps_states_and_its_attention_keys_and_values() -> None:
    kept = [(tensor.layer, tensor.part, tensor.grows) for tensor in cache_tensors(build("bamba"))]
    states = [(0, "conv_state", False), (0, "recurrent_state", False)]
    assert kept == [*states, (1, "key", True), (1, "value", True)]


@pytest.fixture
def hf_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "hf"
    build(request.param).save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


REFUSED = [
    ("whisper", "eager", "encoder-decoder"),
    ("gemma2", "sdpa", "--attention eager"),
    ("gpt_oss", "onnx", "--attention eager"),
    ("jamba", "eager", "another computation for each number of tokens"),
]


@pytest.mark.parametrize(("hf_folder", "attention", "reason"), REFUSED, indirect=["hf_folder"])
def test_what_cant_be_exported_says_why(hf_folder: Path, attention: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError) as caught:
        export_source(str(hf_folder), tmp_path / "out", attention=attention)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
