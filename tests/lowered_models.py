"""Small decoders of fused attention in the forms that can be spelled out, and bundles of them under QB."""

from __future__ import annotations

from pathlib import Path

from chain_models import TABLES, exported
from decoder_blocks import SPEC
from fused_graphs import Fused

from qbpass.models.loading import load_decoder
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.manifest import Emit

CAUSAL, ONE_WAY = {"is_causal": 1}, {"unidirectional": 1}

#: GroupQueryAttention's kernel is its spelled-out form where this variable is set, and another one where it is not.
WITHOUT_FLASH = "ORT_GQA_DISABLE_FLASH_ATTENTION"

FORMS = {
    "onnx, joined outside, booleans": Fused("onnx", added="causal", boolean=True, joined="outside"),
    "onnx, joined outside, one KV head": Fused("onnx", heads=3, kv_heads=1, added="causal", joined="outside"),
    "onnx, rank 3, a KV head a query head": Fused("onnx", rank=3, heads=3, kv_heads=3, added="causal"),
    "onnx, its own order": Fused("onnx", attributes={**CAUSAL, "scale": 0.3}),
    "onnx, rank 3, its own order": Fused("onnx", rank=3, heads=6, kv_heads=2, attributes=CAUSAL),
    "mha, its own order": Fused("mha", attributes=ONE_WAY),
    "mha, joined outside": Fused("mha", added="causal", joined="outside"),
    "gqa": Fused(),
    "gqa, packed, rotary inside": Fused(head_dim=16, packed="qkv", extras=TABLES, attributes={"do_rotary": 1}),
    "gqa, rotary, interleaved": Fused(head_dim=16, extras=TABLES, attributes={"do_rotary": 1, "rotary_interleaved": 1}),
    "gqa under a causal mask": Fused(added="causal"),
}


def lowered(folder: Path, form: Fused, *, layout: str = "qb", emit: Emit = "guarded") -> Bundle:
    decoder = load_decoder(exported(folder, form))
    return write_bundle(decoder, folder / "bundle", layout, SPEC, emit=emit)[0]  # type: ignore[arg-type]
