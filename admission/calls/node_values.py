"""The value of a node's outputs where all it reads is known: sizes, positions, masks, constants.

Run by ONNX's reference evaluator, one node at a time; nodes that differ in their tensors' names only share one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from qbpass.admission.calls.call_inputs import TensorInCall
from qbpass.admission.calls.contrib_types import element_count

#: Elements of the largest value that is worked out, and of all values of one call. The mask of mask_values.LONG_CALL
#: has 60,000, and the indices it is gathered by several times as many.
VALUE_LIMIT = 1 << 19
TRACE_LIMIT = 1 << 25

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
_OF_TYPE_ONLY = frozenset({"Shape", "Size"})  # their operand's shape is enough


class NodeValues:
    """Evaluates nodes of one graph."""

    def __init__(self, opsets: list[onnx.OperatorSetIdProto]) -> None:
        self._opset = next((entry.version for entry in opsets if entry.domain in ("", "ai.onnx")), 1)
        self._evaluators: dict[bytes, ReferenceEvaluator | None] = {}
        self._left = TRACE_LIMIT

    def outputs(
        self, node: onnx.NodeProto, known: dict[str, TensorInCall], types: list[TensorInCall]
    ) -> list[np.ndarray[Any, Any]] | None:
        """Values of all outputs, or None where something the node reads is unknown, or something is too large."""
        if node.domain not in ("", "ai.onnx") or node.op_type not in _EVALUATED:
            return None
        counts = [element_count(found.shape) for found in types]
        if any(count is None or count > VALUE_LIMIT for count in counts) or self._left < 0:
            return None
        if node.op_type in _OF_TYPE_ONLY:
            return _from_shape(node, known.get(node.input[0]))
        reads = [known.get(name) if name else None for name in node.input]
        if any(name and (read is None or read.value is None) for name, read in zip(node.input, reads, strict=True)):
            return None
        evaluator = self._evaluator(node)
        if evaluator is None:
            return None
        feeds = {f"i{k}": read.value for k, read in enumerate(reads) if read is not None}
        try:
            made = evaluator.run(None, feeds)
        except Exception:  # whatever an operator's numpy code raises on values nobody meant it for
            return None
        self._left -= sum(np.size(value) for value in made)
        return [np.asarray(value) for value in made]

    def _evaluator(self, node: onnx.NodeProto) -> ReferenceEvaluator | None:
        twin = onnx.NodeProto()
        twin.CopyFrom(node)
        twin.name = twin.doc_string = ""
        del twin.metadata_props[:]
        twin.input[:] = [f"i{k}" if name else "" for k, name in enumerate(node.input)]
        twin.output[:] = [f"o{k}" if name else "" for k, name in enumerate(node.output)]
        key = twin.SerializeToString(deterministic=True)
        if key not in self._evaluators:
            self._evaluators[key] = self._build(twin)
        return self._evaluators[key]

    def _build(self, node: onnx.NodeProto) -> ReferenceEvaluator | None:
        def infos(names: list[str]) -> list[onnx.ValueInfoProto]:
            return [onnx.helper.make_empty_tensor_value_info(name) for name in names if name]

        graph = onnx.helper.make_graph([node], "node", infos(list(node.input)), infos(list(node.output)))
        try:
            return ReferenceEvaluator(
                onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", self._opset)])
            )
        except Exception:  # an operator that the evaluator does not have at this opset
            return None


def _from_shape(node: onnx.NodeProto, operand: TensorInCall | None) -> list[np.ndarray[Any, Any]] | None:
    if operand is None or operand.shape is None or None in operand.shape:
        return None
    if node.op_type == "Size":
        return [np.array(element_count(operand.shape), np.int64)]
    bounds = {entry.name: entry.i for entry in node.attribute}
    return [np.array(operand.shape[bounds.get("start", 0) : bounds.get("end", len(operand.shape))], np.int64)]
