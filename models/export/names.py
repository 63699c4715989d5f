"""Names the exported graph has: Hugging Face's convention, one key and one value a layer."""

from __future__ import annotations

MODEL_FILE = "model.onnx"
DATA_FILE = "model.onnx.data"  # beside MODEL_FILE, which refers to it by this bare name

TOKEN_INPUTS = ("input_ids", "attention_mask", "position_ids")
QUERY_DIM, PAST_DIM, TOTAL_DIM = "sequence_length", "past_sequence_length", "total_sequence_length"


def input_names(layers: int) -> list[str]:
    """The token inputs, then past_key_values.N.key|value.

    input_ids (1, q), attention_mask (1, past + q), position_ids (1, q); each past (1, kv_heads, past, head_dim).
    """
    return [*TOKEN_INPUTS, *(f"past_key_values.{layer}.{part}" for layer in range(layers) for part in ("key", "value"))]


def output_names(layers: int) -> list[str]:
    """logits (1, q, vocabulary), then present.N.key|value (1, kv_heads, past + q, head_dim)."""
    return ["logits", *(f"present.{layer}.{part}" for layer in range(layers) for part in ("key", "value"))]
