"""Small torch decoders for the export tests, and a way to run their exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def llama(layers: int, seed: int = 0, implementation: str = "eager") -> Any:
    """A random Llama with `layers` layers, 2 KV heads of 16 and 257 tokens."""
    config = transformers.LlamaConfig(
        vocab_size=257,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=256,
        attn_implementation=implementation,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.LlamaForCausalLM(config).eval()


def session(folder: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])


def step(running: ort.InferenceSession, ids: list[int], past: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Feed `ids` behind `past` ({} for none). Gives logits (1, q, vocabulary) and the next past."""
    pasts = [value for value in running.get_inputs() if value.name.startswith("past_key_values.")]
    past = past or {value.name: np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32) for value in pasts}
    start = next(iter(past.values())).shape[2]
    feed = {
        "input_ids": np.array([ids]),
        "attention_mask": np.ones((1, start + len(ids)), np.int64),
        "position_ids": np.arange(start, start + len(ids))[None],
    }
    names = [value.name for value in running.get_outputs()]
    outputs = dict(zip(names, running.run(None, feed | past), strict=True))
    return outputs["logits"], {value.name: outputs[value.name.replace("past_key_values", "present")] for value in pasts}
