"""The tiny model's export is a decoder's: named pasts and presents, free lengths, and torch's logits."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny_models import session, step, torch
from tokenizers import Tokenizer

from qbpass.models.export.loaded import silent
from qbpass.models.export.tiny import load_tiny

IDS = [84, 104, 101, 32, 113, 117, 105, 99, 107, 32, 98, 114, 111, 119, 110]


@pytest.fixture(params=["eager", "sdpa"])
def exported(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(f"tiny_{request.param}")


def shapes(values: list[onnx.ValueInfoProto]) -> dict[str, list[str | int]]:
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values
    }


def test_its_inputs_and_outputs_have_the_usual_names_and_free_lengths(exported: Path) -> None:
    graph = onnx.load(exported / "model.onnx", load_external_data=False).graph
    query, past, total = "sequence_length", "past_sequence_length", "total_sequence_length"
    layers = [f"{layer}.{part}" for layer in range(3) for part in ("key", "value")]
    assert shapes(graph.input) == {
        "input_ids": [1, query],
        "attention_mask": [1, total],
        "position_ids": [1, query],
        **{f"past_key_values.{name}": [1, 2, past, 16] for name in layers},
    }
    assert shapes(graph.output) == {
        "logits": [1, query, 257],
        **{f"present.{name}": [1, 2, total, 16] for name in layers},
    }


def test_prompt_then_steps_give_torchs_logits(exported: Path) -> None:
    running = session(exported)
    prompt, past = step(running, IDS[:10], {})
    single, past = step(running, IDS[10:11], past)
    several, _ = step(running, IDS[11:], past)
    implementation = "eager" if "eager" in exported.name else "sdpa"
    with torch.no_grad():
        expected = load_tiny(implementation, silent).model(torch.tensor([IDS])).logits.numpy()
    # Exporter fidelity, not reproducibility: torch and ONNX Runtime sum in their own orders.
    np.testing.assert_allclose(np.concatenate([prompt, single, several], axis=1), expected, atol=2e-5, rtol=0)


def test_weights_lie_in_one_file_beside_the_graph(exported: Path) -> None:
    graph = onnx.load(exported / "model.onnx", load_external_data=False).graph
    external = [tensor for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
    locations = {entry.value for tensor in external for entry in tensor.external_data if entry.key == "location"}
    assert locations == {"model.onnx.data"}
    assert (exported / "model.onnx.data").is_file()


def test_the_graph_says_nothing_of_the_machine_that_wrote_it(exported: Path) -> None:
    text = (exported / "model.onnx").read_bytes()
    assert str(Path(torch.__file__).parent).encode() not in text
    assert b"stack_trace" not in text


def test_any_text_is_a_prompt(exported: Path) -> None:
    tokenizer = Tokenizer.from_file(str(exported / "tokenizer.json"))
    text = "Grüße, 世界!\n\tdone"
    encoded = tokenizer.encode(text)
    assert len(encoded.ids) == len(text.encode())
    assert tokenizer.decode(encoded.ids) == text


def test_its_configs_name_the_end_token_and_the_context(exported: Path) -> None:
    assert json.loads((exported / "generation_config.json").read_text())["eos_token_id"] == 256
    assert json.loads((exported / "config.json").read_text())["max_position_embeddings"] == 512


def test_greedy_text_repeats_itself_in_part(tiny_eager: Path) -> None:
    """A draft that looks phrases up has something to find, and something to miss."""
    running, tokens, past, ids = session(tiny_eager), list(IDS), {}, list(IDS)
    for _ in range(100):
        logits, past = step(running, ids, past)
        ids = [int(logits[0, -1].argmax())]
        tokens += ids
    pairs = list(pairwise(tokens))
    repeated = len(pairs) - len(set(pairs))
    assert 10 <= repeated <= 90
    assert len(set(tokens[len(IDS) :])) >= 10


def test_the_weights_are_the_same_every_time() -> None:
    first, second = (load_tiny("eager", silent).model.state_dict() for _ in range(2))
    assert all(first[name].numpy().tobytes() == second[name].numpy().tobytes() for name in first)
