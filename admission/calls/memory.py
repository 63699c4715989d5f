"""What the traces of one graph share: what was worked out already, and how much may still be."""

from __future__ import annotations

from collections.abc import Hashable

from onnx.reference import ReferenceEvaluator

from qbpass.admission.calls import node_values
from qbpass.admission.calls.call_inputs import TensorInCall
from qbpass.admission.calls.node_values import Budget

INFERENCES = 60_000  # nodes that differ in more than names; a real graph has a few hundred in a call
MAP_LIMIT = 1 << 31  # elements of all tensors on the ways from caches to products (path_map.py)


class Memory:
    """Nodes that differ in their tensors' names only are worked out once."""

    def __init__(self) -> None:
        self.types: dict[Hashable, list[TensorInCall]] = {}
        self.evaluators: dict[bytes, ReferenceEvaluator | None] = {}
        self.inferences = Budget(INFERENCES)
        self.values = Budget(node_values.TRACE_LIMIT)
        self.maps = Budget(MAP_LIMIT)
