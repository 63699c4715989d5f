"""The independent integer oracle: a graph run on index tensors, its arithmetic replaced by a record of what was read.

ONNX's reference evaluator runs the nodes, so every layout operation is numpy's own and none of the algebra's. Traced
tensors hold element numbers (elements.py) as uint64, which no operator of a decoder makes: sizes and masks stay what
they are. Products, sums, softmax and their like are replaced by operators that record their operands' numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import load_op

from qbpass.admission.strides.elements import ELEMENT_LIMIT, Elements, Ids, UntracedError
from qbpass.admission.strides.node_kinds import CASTS, LAYOUT, SIZES, UNARY, cast_label, data_operands
from qbpass.admission.strides.operands import Memory

_TRACED = np.dtype(np.uint64)
Array = np.ndarray[Any, Any]
Recorder = Callable[..., Ids]


def run_oracle(
    model: onnx.ModelProto, leaves: Mapping[str, Memory], feeds: Mapping[str, Array]
) -> tuple[Elements, dict[str, Ids], dict[str, Array]]:
    """(elements, numbers of every tensor computed from `leaves`, values of the others).

    Raises UntracedError.
    """
    elements = Elements()
    inputs: dict[str, Array] = dict(feeds)
    for name, memory in leaves.items():
        inputs[name] = memory.elements_in(elements).astype(_TRACED)
    made = [output for node in model.graph.node for output in node.output if output]
    open_model = onnx.ModelProto()
    open_model.CopyFrom(model)
    del open_model.graph.output[:]
    open_model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in made)
    try:
        # Numbers beside the traced ones may be anything; their warnings are nobody's.
        with np.errstate(all="ignore"):
            values = ReferenceEvaluator(open_model, new_ops=_recording(elements)).run(None, inputs)
    except UntracedError:
        raise
    except Exception as error:  # the evaluator raises whatever an operator's numpy code raises
        raise UntracedError(f"can't be run on index tensors: {str(error).strip()[:200]}") from error
    constants = {constant.name: numpy_helper.to_array(constant) for constant in model.graph.initializer}
    results = {**constants, **inputs, **dict(zip(made, map(np.asarray, values), strict=True))}
    _check_operators(model, results)
    traced = {name: value.astype(np.int64) for name, value in results.items() if value.dtype == _TRACED}
    return elements, traced, {name: value for name, value in results.items() if name not in traced}


def _check_operators(model: onnx.ModelProto, results: Mapping[str, Array]) -> None:
    """Element numbers that were computed with, or mixed with values, are numbers of nothing: that is no trace."""
    for node in model.graph.node:
        if node.op_type in SIZES or (node.domain, node.op_type) in _RECORDERS:
            continue
        read = [bool(name) and results[name].dtype == _TRACED for name in node.input]
        if not any(read):
            continue
        if node.op_type not in LAYOUT or node.domain not in ("", "ai.onnx"):
            raise UntracedError(f"holds a {node.op_type}, of which it is not known what it reads")
        if [k for k, traced in enumerate(read) if traced] != data_operands(node):
            raise UntracedError(f"holds a {node.op_type} that mixes traced elements with values")


def _recording(elements: Elements) -> list[type[OpRun]]:
    """Operators that record instead of computing where an operand is traced, and growing ones with a bound."""
    runners = {key: _runner(elements, recorder, *key) for key, recorder in _RECORDERS.items()}
    made: list[int] = []
    runners |= {("", op_type): _bounded(op_type, count, made) for op_type, count in _GROWING.items()}
    return [type(name, (OpRun,), {"op_domain": domain, "_run": run}) for (domain, name), run in runners.items()]


def _runner(elements: Elements, recorder: Recorder, domain: str, op_type: str) -> Callable[..., tuple[Array, ...]]:
    def run(self: OpRun, *operands: Array, **attributes: Any) -> tuple[Array, ...]:
        if any(operand is not None and operand.dtype == _TRACED for operand in operands):
            return (recorder(elements, self.onnx_node, *operands).astype(_TRACED),)
        return _as_defined(self, domain, op_type, operands)

    return run


def _bounded(op_type: str, count: Callable[..., int], made: list[int]) -> Callable[..., tuple[Array, ...]]:
    """`made`: what all bounded operators of the run have made so far; every tensor is kept to its end."""

    def run(self: OpRun, *operands: Array, **attributes: Any) -> tuple[Array, ...]:
        made.append(count(*operands))
        if sum(made) > ELEMENT_LIMIT:
            raise UntracedError(f"makes more than {ELEMENT_LIMIT:,} elements in a tiny call, by a {op_type}")
        return _as_defined(self, "", op_type, operands)

    return run


def _as_defined(node: OpRun, domain: str, op_type: str, operands: tuple[Array, ...]) -> tuple[Array, ...]:
    """What the evaluator's own operator gives."""
    result: tuple[Array, ...] = load_op(domain, op_type)(node.onnx_node, node.run_params).run(*operands)
    return result


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(entry) for entry in node.attribute if entry.name == name), default)


def _ids(elements: Elements, operand: Array) -> Ids:
    """An operand's element numbers; a value becomes numbers of its own."""
    return operand.astype(np.int64) if operand.dtype == _TRACED else elements.numbers(operand)


def _matmul(elements: Elements, node: onnx.NodeProto, left: Array, right: Array) -> Ids:
    left, right = _ids(elements, left), _ids(elements, right)
    if node.op_type == "FusedMatMul":
        left, right = _as_read(node, left, "A"), _as_read(node, right, "B")
    if min(left.ndim, right.ndim) < 2 or left.shape[-1] != right.shape[-2]:
        raise UntracedError(f"multiplies {list(left.shape)} by {list(right.shape)}")
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    left = np.broadcast_to(left, (*batch, *left.shape[-2:]))
    right = np.broadcast_to(right, (*batch, *right.shape[-2:]))
    return elements.product(left, right, float(_attribute(node, "alpha", 1.0)))


def _as_read(node: onnx.NodeProto, operand: Ids, side: str) -> Ids:
    if _attribute(node, f"transBatch{side}", 0):
        operand = np.moveaxis(operand, 0, -2)
    return np.swapaxes(operand, -1, -2) if _attribute(node, f"trans{side}", 0) else operand


def _binary(elements: Elements, node: onnx.NodeProto, left: Array, right: Array) -> Ids:
    traced = (left.dtype == _TRACED, right.dtype == _TRACED)
    if traced == (True, True):
        if node.op_type != "Add":
            raise UntracedError(f"combines two traced tensors by {node.op_type}")
        return elements.sum(left.astype(np.int64), right.astype(np.int64))
    held, values = (left, right) if traced[0] else (right, left)
    turned = "" if traced[0] or node.op_type in ("Add", "Mul") else "reversed "
    return elements.step(turned + node.op_type, held.astype(np.int64), values)


def _softmax(elements: Elements, node: onnx.NodeProto, scores: Array) -> Ids:
    if _attribute(node, "axis", -1) not in (-1, scores.ndim - 1):
        raise UntracedError("has a softmax that does not run over the last axis")
    return elements.softmax(scores.astype(np.int64))


def _where(elements: Elements, node: onnx.NodeProto, condition: Array, yes: Array, no: Array) -> Ids:
    return elements.choice(*(_ids(elements, operand) for operand in (condition, yes, no)))


def _unary(elements: Elements, node: onnx.NodeProto, operand: Array, *rest: Array) -> Ids:
    label = cast_label(node) if node.op_type in CASTS else node.op_type
    return elements.step(label, operand.astype(np.int64))


#: Operators whose result may be larger than what they read, and how many elements it has at most.
_GROWING: dict[str, Callable[..., int]] = {
    "Concat": lambda *parts: sum(part.size for part in parts),
    "ConstantOfShape": lambda shape: math.prod(shape.tolist()),
    "Expand": lambda data, shape: math.prod(np.broadcast_shapes(data.shape, tuple(shape.tolist()))),
    "Gather": lambda data, indices: data.size * indices.size,
    "Range": lambda start, limit, delta: abs(int((limit - start) / delta)) if delta else 0,
    "Tile": lambda data, repeats: data.size * math.prod(repeats.tolist()),
}

_RECORDERS: dict[tuple[str, str], Recorder] = {
    ("", "MatMul"): _matmul,
    ("com.microsoft", "FusedMatMul"): _matmul,
    **dict.fromkeys((("", name) for name in ("Add", "Sub", "Mul", "Div")), _binary),
    ("", "Softmax"): _softmax,
    ("", "Where"): _where,
    **dict.fromkeys((("", name) for name in (*UNARY, *CASTS)), _unary),
}
