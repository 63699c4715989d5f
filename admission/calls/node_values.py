"""The value of a node's outputs where all it reads is known: sizes, positions, masks, constants.

Run by ONNX's reference evaluator, one node at a time; nodes that differ in their tensors' names only share one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx.external_data_helper import uses_external_data
from onnx.reference import ReferenceEvaluator

from qbpass.admission.calls.call_inputs import VALUE_LIMIT, TensorInCall
from qbpass.admission.calls.contrib_types import element_count
from qbpass.models.stored_tensors import attribute_tensors

#: What all values of a graph's traces may cost: elements read and made. The mask of mask_values.LONG_CALL has 60,000,
#: and the indices it is gathered by several times as many: real graphs take a tenth of it.
TRACE_LIMIT = 1 << 28
_RUN_COST, _BUILD_COST = 8192, 65_536  # of a node, however small; of the first node of a kind
_LOOPS = {"GatherND": 32, "ScatterND": 32, "ScatterElements": 32, "GatherElements": 32}  # in Python, not in numpy

# Cheap for every input of bounded size, and free of randomness, weights and subgraphs.
_EVALUATED = frozenset(
    {
        "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "Concat", "Constant", "ConstantOfShape",
        "CumSum", "Div", "Equal", "Exp", "Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherElements",
        "GatherND", "Greater", "GreaterOrEqual", "Identity", "IsInf", "IsNaN", "Less", "LessOrEqual", "Log",
        "Max", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "Or", "Pad", "Pow", "Range", "Reciprocal",
        "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "ScatterElements", "ScatterND", "Shape",
        "Sign", "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tile", "Transpose", "Trilu",
        "Unsqueeze", "Where", "Xor",
    }
)  # fmt: skip
_NUMBERS = "biufV"  # kinds of dtypes; V: types of fewer than 16 bits, and bfloat16
_OF_TYPE_ONLY = frozenset({"Shape", "Size"})  # their operand's shape is enough


class Budget:
    """Bounded work. What is spent stays spent."""

    def __init__(self, units: int) -> None:
        self._left = units

    def spend(self, units: int) -> bool:
        """Whether there was as much left."""
        self._left -= units
        return self._left >= 0


class NodeValues:
    """Evaluates nodes of one graph."""

    def __init__(
        self,
        opsets: list[onnx.OperatorSetIdProto],
        evaluators: dict[bytes, ReferenceEvaluator | None],
        budget: Budget,
        limit: int = VALUE_LIMIT,
    ) -> None:
        """evaluators: of nodes of the same operator sets; budget: what values may cost; limit: elements of one."""
        self._limit, self._budget, self._evaluators = limit, budget, evaluators
        self._opset = next((entry.version for entry in opsets if entry.domain in ("", "ai.onnx")), 1)

    def outputs(
        self, node: onnx.NodeProto, known: dict[str, TensorInCall], types: list[TensorInCall]
    ) -> list[np.ndarray[Any, Any]] | None:
        """Values of all outputs, or None where something the node reads is unknown, or something is too large.

        types: as inferred from what the node reads; what a file declares is no bound.
        """
        if node.op_type not in _EVALUATED or node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type in _OF_TYPE_ONLY:
            return _from_shape(node, known.get(node.input[0]))
        reads = [known.get(name) if name else None for name in node.input]
        if any(name and (read is None or read.value is None) for name, read in zip(node.input, reads, strict=True)):
            return None
        feeds = {f"i{k}": read.value for k, read in enumerate(reads) if read is not None and read.value is not None}
        sizes = _sizes(node, feeds, types)
        if sizes is None or max(sizes, default=0) > self._limit or not self._may_cost(node, feeds, sizes):
            return None
        evaluator = self._evaluator(node)
        if evaluator is None:
            return None
        try:
            with np.errstate(all="ignore"):  # values nobody meant them for: their warnings are nobody's
                made = [np.asarray(value) for value in evaluator.run(None, feeds)]
        except Exception:  # whatever an operator's numpy code raises on values nobody meant it for
            return None
        return made if all(value.dtype.kind in _NUMBERS for value in made) else None

    def _may_cost(self, node: onnx.NodeProto, feeds: Mapping[str, np.ndarray[Any, Any]], sizes: list[int]) -> bool:
        elements = sum(sizes) + sum(value.size for value in feeds.values())
        return self._budget.spend(_RUN_COST + elements * _LOOPS.get(node.op_type, 1))

    def _evaluator(self, node: onnx.NodeProto) -> ReferenceEvaluator | None:
        twin = onnx.NodeProto()
        twin.CopyFrom(node)
        twin.name = twin.doc_string = ""
        del twin.metadata_props[:]
        twin.input[:] = [f"i{k}" if name else "" for k, name in enumerate(node.input)]
        twin.output[:] = [f"o{k}" if name else "" for k, name in enumerate(node.output)]
        key = twin.SerializeToString(deterministic=True)
        if key not in self._evaluators:
            self._budget.spend(_BUILD_COST)
            self._evaluators[key] = self._build(twin)
        return self._evaluators[key]

    def _build(self, node: onnx.NodeProto) -> ReferenceEvaluator | None:
        def infos(names: list[str]) -> list[onnx.ValueInfoProto]:
            return [onnx.helper.make_empty_tensor_value_info(name) for name in names if name]

        if any(uses_external_data(tensor) for tensor in attribute_tensors(node.attribute)):
            return None  # the evaluator would look for it where the process runs, which is not the model's folder
        graph = onnx.helper.make_graph([node], "node", infos(list(node.input)), infos(list(node.output)))
        try:
            return ReferenceEvaluator(
                onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", self._opset)])
            )
        except Exception:  # an operator that the evaluator does not have at this opset
            return None


def _sizes(
    node: onnx.NodeProto, feeds: Mapping[str, np.ndarray[Any, Any]], types: list[TensorInCall]
) -> list[int] | None:
    """Elements of each output; None where that is not known before."""
    if node.op_type == "NonZero":  # a column of indices for each element at most
        return [value.size * max(value.ndim, 1) for value in feeds.values()]
    counts = [element_count(found.shape) for found in types]
    known = [count for count in counts if count is not None]
    return known if len(known) == len(counts) else None


def _from_shape(node: onnx.NodeProto, operand: TensorInCall | None) -> list[np.ndarray[Any, Any]] | None:
    if operand is None or operand.shape is None or None in operand.shape:
        return None
    if node.op_type == "Size":
        count = element_count(operand.shape) or 0
        return [np.array(count, np.int64)] if count < 2**63 else None
    bounds = {entry.name: entry.i for entry in node.attribute}
    return [np.array(operand.shape[bounds.get("start", 0) : bounds.get("end", len(operand.shape))], np.int64)]
