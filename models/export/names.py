"""Names the exported graph has: Hugging Face's convention, one key and one value a layer."""

from __future__ import annotations

from qbpass.models.export.cache_tensors import CacheTensor

MODEL_FILE = "model.onnx"
DATA_FILE = "model.onnx.data"  # beside MODEL_FILE, which refers to it by this bare name

QUERY_DIM, PAST_DIM, TOTAL_DIM = "sequence_length", "past_sequence_length", "total_sequence_length"


def past_name(tensor: CacheTensor) -> str:
    """past_key_values.N.key|value (1, kv_heads, past, dim), past_key_values.N.conv_state|recurrent_state."""
    return f"past_key_values.{tensor.layer}.{tensor.part}"


def present_name(tensor: CacheTensor) -> str:
    """present.N.key|value (1, kv_heads, past + q, dim), present.N.conv_state|recurrent_state."""
    return f"present.{tensor.layer}.{tensor.part}"
