"""The softmax of an attention: one Softmax node, or the five nodes that Softmax is defined by.

ONNX Runtime replaces a Softmax that its provider has no kernel for (float16 on the CPU) by the operator's definition in
the ONNX standard: `ReduceMax, Sub, Exp, ReduceSum, Div` over the last axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx

from qbpass.models.dataflow import attribute

Producer = Callable[[str], onnx.NodeProto | None]
Constant = Callable[[str], np.ndarray | None]


@dataclass(frozen=True)
class SpelledOut:
    """`scores` is what the softmax reads; `parts` are its nodes in order but for the last, the division."""

    scores: str
    parts: tuple[onnx.NodeProto, ...]


def spelled_out(division: onnx.NodeProto, producer: Producer, constant: Constant) -> SpelledOut | None:
    """The five nodes that `division` ends, if they are `Exp(x - max(x)) / sum(Exp(x - max(x)))` over the last axis."""
    if division.op_type != "Div" or division.domain not in ("", "ai.onnx"):
        return None
    exp, total = (producer(name) for name in division.input)
    shifted = producer(exp.input[0]) if exp is not None and exp.op_type == "Exp" else None
    if exp is None or total is None or shifted is None or shifted.op_type != "Sub":
        return None
    scores, highest = shifted.input[0], producer(shifted.input[1])
    if highest is None or highest.op_type != "ReduceMax" or total.op_type != "ReduceSum":
        return None
    read = highest.input[0] == scores and total.input[0] == exp.output[0]
    if not read or not all(_over_the_last_axis(node, constant) for node in (highest, total)):
        return None
    return SpelledOut(str(scores), (highest, shifted, exp, total))


def _over_the_last_axis(node: onnx.NodeProto, constant: Constant) -> bool:
    """-1, and no other name of the last axis: a layout may give the scores another rank."""
    if len(node.input) > 1 and node.input[1]:
        value = constant(node.input[1])
        axes = None if value is None else value.reshape(-1).tolist()
    else:
        axes = attribute(node, "axes", None)
    return list(axes or ()) == [-1] and attribute(node, "keepdims", 1) == 1
