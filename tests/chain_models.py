"""Decoders of GroupQueryAttention in the forms that exporters write, and bundles of their chains."""

from __future__ import annotations

from pathlib import Path

import onnx
from decoder_blocks import SPEC
from fused_graphs import Fused, fused_decoder
from onnx import TensorProto

from qbpass.models.loading import load_decoder
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.manifest import Emit

TABLES = {"cos_cache": (64, 8), "sin_cache": (64, 8)}

FORMS = {
    "rows apart": Fused(),
    "packed, rotary inside": Fused(head_dim=16, packed="qkv", extras=TABLES, attributes={"do_rotary": 1}),
    "rotary, interleaved": Fused(head_dim=16, extras=TABLES, attributes={"do_rotary": 1, "rotary_interleaved": 1}),
    "a window": Fused(attributes={"local_window_size": 6}),
    "capped scores": Fused(attributes={"softcap": 20.0}),
    "sinks": Fused(extras={"head_sink": (4,)}),
    "a softmax with a one in its sum": Fused(attributes={"smooth_softmax": 1}),
    "a bias on the scores": Fused(added="alibi"),
    "one KV head": Fused(heads=4, kv_heads=1),
    "a KV head a query head": Fused(heads=3, kv_heads=3, attributes={"scale": 0.3}),
    "half precision": Fused(elem_type=TensorProto.FLOAT16),
}


def exported(folder: Path, *layers: Fused) -> Path:
    """An .onnx file of a decoder with these attentions, two where one is given."""
    path = folder / "model.onnx"
    onnx.save(fused_decoder(*(layers * 2 if len(layers) == 1 else layers)).model, path)
    return path


def chained(folder: Path, *layers: Fused, phase_mask: int = 2, emit: Emit = "guarded") -> Bundle:
    decoder = load_decoder(exported(folder, *layers))
    return write_bundle(decoder, folder / "bundle", "pq", SPEC, phase_mask=phase_mask, emit=emit)[0]
