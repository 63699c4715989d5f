"""What any graph takes and gives, found by dataflow."""

from __future__ import annotations

import onnx

from qbpass.models.find_contract import find_contract
from qbpass.models.interface import Interface


def find_interface(model: onnx.ModelProto) -> Interface:
    """The interface of a decoder."""
    return Interface.of(find_contract(model))
