"""Whisper's decoder as optimum writes it: tokens, the cache of its own tokens, and the encoder's keys and values.

qbpass exports no encoder-decoder, so the tests do. self: past_key_values.N.decoder.key|value (1, 4, past, 16), which a
call appends to; cross: past_key_values.N.encoder.key|value (1, 4, frames, 16), which a call only reads.
"""

from __future__ import annotations

import warnings
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

PAST, QUERY, FRAMES = 7, 3, 30
PARTS = ("key", "value")


class WhisperDecoder(torch.nn.Module):
    """(input_ids (1, q), [self], [cross]) -> (logits (1, q, vocabulary), [self])."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, own: Any, cross: Any) -> Any:
        caches = []
        for tensors in (own, cross):
            cache = DynamicCache()
            for layer, (key, value) in enumerate(zip(tensors[::2], tensors[1::2], strict=True)):
                cache.update(key, value, layer)
            caches.append(cache)
        past = EncoderDecoderCache(*caches)  # a cross cache that holds something is not computed again
        frames = torch.zeros(1, FRAMES, self.model.config.d_model)  # decides that there is an encoder, and nothing else
        output = self.model(
            decoder_input_ids=input_ids,
            encoder_outputs=BaseModelOutput(last_hidden_state=frames),
            past_key_values=past,
            use_cache=True,
        )
        presents = [tensor for layer in past.self_attention_cache.layers for tensor in (layer.keys, layer.values)]
        return output.logits, presents


def write_whisper_decoder(model: Any, folder: Path, *, dynamo: bool, opset: int) -> None:
    """model.onnx of `model`'s decoder, through torch's newer or older exporter."""
    layers, heads = model.config.decoder_layers, model.config.decoder_attention_heads
    width = model.config.d_model // heads
    own = [torch.zeros(1, heads, PAST, width) for _ in range(2 * layers)]
    cross = [torch.zeros(1, heads, FRAMES, width) for _ in range(2 * layers)]
    owns = [f"past_key_values.{layer}.decoder.{part}" for layer in range(layers) for part in PARTS]
    crosses = [name.replace("decoder", "encoder") for name in owns]
    presents = [name.replace("past_key_values", "present") for name in owns]
    dim = torch.export.Dim
    query, past = dim("sequence_length", min=1), dim("past_sequence_length", min=1)
    sizes = {"dynamic_shapes": ({1: query}, [{2: past}] * len(own), [{}] * len(cross)), "optimize": True}
    axes = {"input_ids": {1: "sequence_length"}, "logits": {1: "sequence_length"}}
    axes |= {name: {2: "past_sequence_length"} for name in owns}
    axes |= {name: {2: "total_sequence_length"} for name in presents}
    with torch.no_grad(), warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            WhisperDecoder(model).eval(),
            (torch.zeros(1, QUERY, dtype=torch.long), own, cross),
            str(folder / "model.onnx"),
            dynamo=dynamo,
            opset_version=opset,
            input_names=["input_ids", *owns, *crosses],
            output_names=["logits", *presents],
            **(sizes if dynamo else {"dynamic_axes": axes}),
        )
