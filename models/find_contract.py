"""The contract of a decoder that qbpass can run."""

from __future__ import annotations

import onnx

from qbpass.models.contract import DecoderContract
from qbpass.models.find_interface import find_interface


def find_contract(model: onnx.ModelProto) -> DecoderContract:
    """The contract of a decoder with a KV cache.

    Raises ContractError, one line, where its interface has a problem: no KV inputs, no logits or only the last
    position's, a fixed number of tokens or batch rows, an input that is none of token ids, mask, positions and KV
    cache, or another of models/interface.py's codes.
    """
    return find_interface(model).contract
