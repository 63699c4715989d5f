"""Bounded walks from a softmax to its QK and AV products."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from qbpass.admission.dataflow import Flow

PRODUCTS = frozenset({"MatMul", "FusedMatMul", "Einsum", "Gemm"})
PLAIN_PRODUCTS = frozenset({"MatMul", "FusedMatMul"})

# What may lie between a product and the softmax for the softmax still to count as attention. Wider than what is
# admitted, so that an unusual attention is found, named and refused rather than overlooked.
PASS_THROUGH = frozenset(
    {
        *(
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Neg",
            "Tanh",
            "Sigmoid",
            "Relu",
            "Exp",
            "Log",
            "Sqrt",
            "Pow",
            "Abs",
            "Clip",
            "Max",
            "Min",
            "Erf",
        ),
        *("Where", "IsNaN", "IsInf", "Cast", "CastLike", "Identity", "Dropout", "Softplus", "And", "Or", "Not"),
        *(
            "Concat",
            "Slice",
            "Split",
            "Pad",
            "Reshape",
            "Transpose",
            "Unsqueeze",
            "Squeeze",
            "Expand",
            "Gather",
            "Flatten",
        ),
        *("ScatterND", "ScatterElements", "ReduceMax", "ReduceSum"),
    }
)

WALK_LIMIT = 64  # nodes one walk may visit; the longest real path (sdpa's key) has 11


def is_activation_product(node: onnx.NodeProto, flow: Flow) -> bool:
    """A product of two tensors that both depend on the call: not a projection by a weight."""
    return (
        node.op_type in PRODUCTS
        and len(node.input) >= 2
        and all(tensor in flow.activations for tensor in node.input[:2])
    )


def find_score_products(tensor: str, flow: Flow) -> list[onnx.NodeProto]:
    """Products of two activations that `tensor` is computed from through PASS_THROUGH operators, the nearest first."""
    found: dict[int, onnx.NodeProto] = {}
    seen, pending = {tensor}, [tensor]
    while pending and len(seen) < WALK_LIMIT:
        node = flow.producer(pending.pop(0))
        if node is None:
            continue
        if is_activation_product(node, flow):
            found[flow.position(node.output[0])] = node
        elif node.op_type in PASS_THROUGH and flow.elem_type(node.output[0]) not in _NO_SCORES:
            fresh = [name for name in node.input if name in flow.activations and name not in seen]
            seen.update(fresh)
            pending.extend(fresh)
    return list(found.values())


_NO_SCORES = frozenset({onnx.TensorProto.BOOL, onnx.TensorProto.INT64, onnx.TensorProto.INT32})


@dataclass(frozen=True)
class ProductUse:
    """A product that reads a tensor (through PASS_THROUGH operators), and the operand place it reads it at."""

    node: onnx.NodeProto
    operand: int
    tensor: str


def find_probability_product(tensor: str, flow: Flow) -> ProductUse | None:
    """The first activation product that reads `tensor` through PASS_THROUGH operators, best as first operand."""
    uses: list[ProductUse] = []
    seen, pending = {tensor}, [tensor]
    while pending and len(seen) < WALK_LIMIT:
        name = pending.pop(0)
        for node in flow.consumers(name):
            if is_activation_product(node, flow):
                uses.append(ProductUse(node, list(node.input).index(name), name))
            elif node.op_type in PASS_THROUGH:
                fresh = [output for output in node.output if output and output not in seen]
                seen.update(fresh)
                pending.extend(fresh)
    return min(uses, key=lambda use: use.operand, default=None)


def softmax_input(node: onnx.NodeProto, flow: Flow) -> str | None:
    """The scores, if the node is a Softmax, one that ONNX Runtime fused a mask into (BiasSoftmax), or the division that
    ends one spelled out: `Exp(x) / ReduceSum(Exp(x))`.
    """
    if node.op_type in ("Softmax", "BiasSoftmax"):
        return str(node.input[0])
    if node.op_type != "Div":
        return None
    spelled = flow.spelled_out_softmax(node)
    if spelled is not None:
        return spelled.scores
    top, bottom = (flow.producer(name) for name in node.input[:2])
    if top is None or bottom is None or top.op_type != "Exp" or bottom.op_type != "ReduceSum":
        return None
    return str(top.input[0]) if bottom.input[0] == top.output[0] else None
