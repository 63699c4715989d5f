"""Arithmetic of a graph in the algebra of views: operands as the operation walks over them, results in new memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from qbpass.admission.strides import view_ops
from qbpass.admission.strides.algebra import AlgebraTrace, Held
from qbpass.admission.strides.algebra_layout import source_of
from qbpass.admission.strides.elements import Ids, UntracedError
from qbpass.admission.strides.node_kinds import CASTS, UNARY, cast_label
from qbpass.models.dataflow import attribute

Handler = Callable[[AlgebraTrace, onnx.NodeProto], None]


def _operand(trace: AlgebraTrace, name: str) -> Held:
    """A traced operand, or a value as numbers in memory of its own."""
    if name in trace.held:
        return trace.held[name]
    return trace.fresh(name, trace.elements.numbers(trace.value(name)), frozenset())


def _matmul(trace: AlgebraTrace, node: onnx.NodeProto) -> None:
    held = [_operand(trace, name) for name in node.input[:2]]
    views = [operand.view for operand in held]
    if node.op_type == "FusedMatMul":
        flags = [(bool(attribute(node, f"trans{s}", 0)), bool(attribute(node, f"transBatch{s}", 0))) for s in "AB"]
        views = [
            view_ops.product_operand(view, trans=trans, trans_batch=batch)
            for view, (trans, batch) in zip(views, flags, strict=True)
        ]
    if min(len(view.shape) for view in views) < 2 or views[0].shape[-1] != views[1].shape[-2]:
        raise UntracedError(f"multiplies {list(views[0].shape)} by {list(views[1].shape)}")
    batch = np.broadcast_shapes(views[0].shape[:-2], views[1].shape[:-2])
    rows, columns = (
        trace.operand(
            f"{node.op_type} operand {index}",
            node.input[index],
            operand,
            view_ops.expand(view, (*batch, *view.shape[-2:])),
        )
        for index, (operand, view) in enumerate(zip(held, views, strict=True))
    )
    _made(trace, node, trace.elements.product(rows, columns, float(attribute(node, "alpha", 1.0))))


def _binary(trace: AlgebraTrace, node: onnx.NodeProto) -> None:
    held = [trace.held.get(name) for name in node.input]
    if held[0] is not None and held[1] is not None:
        if node.op_type != "Add":
            raise UntracedError(f"combines two traced tensors by {node.op_type}")
        shape = np.broadcast_shapes(held[0].view.shape, held[1].view.shape)
        sides = [
            trace.operand(f"Add operand {k}", node.input[k], side, view_ops.expand(side.view, shape))
            for k, side in enumerate(held)
            if side is not None
        ]
        _made(trace, node, trace.elements.sum(*sides))
        return
    at = 0 if held[0] is not None else 1
    source = held[at]
    if source is None:
        raise UntracedError(f"holds a {node.op_type} that is not traced")
    turned = "" if at == 0 or node.op_type in ("Add", "Mul") else "reversed "
    values = trace.value(node.input[1 - at])
    _made(trace, node, trace.elements.step(turned + node.op_type, source.ids(), values), source.roots)


def _softmax(trace: AlgebraTrace, node: onnx.NodeProto) -> None:
    source = source_of(trace, node)
    if attribute(node, "axis", -1) not in (-1, len(source.view.shape) - 1):
        raise UntracedError("has a softmax that does not run over the last axis")
    _made(trace, node, trace.elements.softmax(source.ids()))


def _where(trace: AlgebraTrace, node: onnx.NodeProto) -> None:
    held = [_operand(trace, name) for name in node.input]
    shape = np.broadcast_shapes(*(operand.view.shape for operand in held))
    ids = [
        trace.operand(f"Where operand {k}", node.input[k], operand, view_ops.expand(operand.view, shape))
        for k, operand in enumerate(held)
    ]
    _made(trace, node, trace.elements.choice(*ids))


def _unary(trace: AlgebraTrace, node: onnx.NodeProto) -> None:
    source = source_of(trace, node)
    label = cast_label(node) if node.op_type in CASTS else node.op_type
    _made(trace, node, trace.elements.step(label, source.ids()), source.roots)


def _made(trace: AlgebraTrace, node: onnx.NodeProto, ids: Ids, roots: frozenset[str] = frozenset()) -> None:
    trace.held[node.output[0]] = trace.fresh(node.output[0], ids, roots)


ARITHMETIC_HANDLERS: dict[tuple[str, str], Handler] = {
    ("", "MatMul"): _matmul,
    ("com.microsoft", "FusedMatMul"): _matmul,
    **dict.fromkeys((("", name) for name in ("Add", "Sub", "Mul", "Div")), _binary),
    ("", "Softmax"): _softmax,
    ("", "Where"): _where,
    **dict.fromkeys((("", name) for name in (*UNARY, *CASTS)), _unary),
}
