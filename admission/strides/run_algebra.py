"""Runs a graph through the algebra of views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from qbpass.admission.strides.algebra import AlgebraTrace
from qbpass.admission.strides.algebra_arithmetic import ARITHMETIC_HANDLERS
from qbpass.admission.strides.algebra_layout import LAYOUT_HANDLERS
from qbpass.admission.strides.elements import UntracedError
from qbpass.admission.strides.node_kinds import SIZES
from qbpass.admission.strides.operands import Memory


def run_algebra(
    model: onnx.ModelProto, leaves: Mapping[str, Memory], values: Mapping[str, np.ndarray[Any, Any]], elem_size: int
) -> AlgebraTrace:
    """Every traced tensor of one call. `values` holds the others: sizes, masks of numbers, constants.

    Raises UntracedError.
    """
    trace = AlgebraTrace(leaves, values, elem_size)
    for node in model.graph.node:
        if node.op_type in SIZES or not any(name in trace.held for name in node.input):
            continue
        domain = "" if node.domain == "ai.onnx" else node.domain
        handler = ARITHMETIC_HANDLERS.get((domain, node.op_type))
        handler = LAYOUT_HANDLERS.get(node.op_type) if handler is None and not domain else handler
        if handler is None:
            raise UntracedError(f"holds a {node.op_type}, of which it is not known what it reads")
        try:
            handler(trace, node)
        except (ValueError, IndexError) as error:
            raise UntracedError(f"holds a {node.op_type} whose sizes don't fit: {error}") from error
    return trace
