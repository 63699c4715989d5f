"""One float32 export in another weight format, by ONNX Runtime's own tools."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from qbpass.models.contract import DecoderContract
from qbpass.models.loading import load_decoder

CALIBRATION_TOKENS = 32


def convert(source: Path, weights: str, out: Path) -> None:
    """Write `source` (float32) to `out`, its weights in the format called `weights` (axes.py)."""
    with _silent():
        if weights == "fp16":
            _half(source, out)
        elif weights == "dynamic-int8":
            _dynamic(source, out)
        elif weights == "qdq-int8":
            _static(source, out)
        else:
            _blocks(source, out, weights)


def _half(source: Path, out: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(source)), out)


def _blocks(source: Path, out: Path, weights: str) -> None:
    """int4-128-zp: 4 bits, blocks of 128, zero points; int4-acc0: blocks of 32 at accuracy level 0."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    bits, kind, *rest = weights.split("-")
    quantizer = MatMulNBitsQuantizer(
        onnx.load(source),
        bits=int(bits.removeprefix("int")),
        block_size=32 if kind == "acc0" else int(kind),
        is_symmetric=rest != ["zp"],
        accuracy_level=0 if kind == "acc0" else 4,
    )
    quantizer.process()
    onnx.save(quantizer.model.model, out)


def _dynamic(source: Path, out: Path) -> None:
    """Products alone: the tool turns an ONNX Attention operator into one that ONNX Runtime can't load."""
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(source, out, op_types_to_quantize=["MatMul"])


def _static(source: Path, out: Path) -> None:
    """Inputs as uint8: at opset 23 ONNX Runtime 1.32 can't load its own tool's int8 inputs (a pass makes them uint8 and
    leaves their output_dtype behind).
    """
    from onnxruntime.quantization import QuantType, quantize_static

    model = onnx.load(source)
    stored = {tensor.name for tensor in model.graph.initializer}
    products = [n.name for n in model.graph.node if n.op_type == "MatMul" and stored.intersection(n.input)]
    quantize_static(
        source,
        out,
        _Calibration(source),
        op_types_to_quantize=["MatMul"],
        nodes_to_quantize=products,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


class _Calibration:
    """One prompt of random tokens, the cache empty."""

    def __init__(self, source: Path):
        self._feeds: Iterator[dict[str, Any]] = iter([_prompt(load_decoder(source).contract)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def _prompt(contract: DecoderContract) -> dict[str, Any]:
    """Feeds by name: (1, tokens) int64, and the cache as (1, Hkv, 0, d) float32."""
    tokens = np.random.default_rng(0).integers(0, contract.vocab_size, (1, CALIBRATION_TOKENS))
    feeds: dict[str | None, Any] = {
        contract.input_ids: tokens,
        contract.attention_mask: np.ones_like(tokens),
        contract.position_ids: np.arange(CALIBRATION_TOKENS)[None],
    }
    for pair in contract.kv:
        feeds[pair.past_key] = np.zeros((1, pair.kv_heads, 0, pair.key_dim), np.float32)
        feeds[pair.past_value] = np.zeros((1, pair.kv_heads, 0, pair.value_dim), np.float32)
    return {name: array for name, array in feeds.items() if name is not None}


@contextmanager
def _silent() -> Iterator[None]:
    """The tools' advice and progress stay off the terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
