"""Constant factors on attention scores, and casts on the way to them."""

from __future__ import annotations

import onnx

from qbpass.admission.dataflow import Flow
from qbpass.admission.site import ElementStep, SiteNodes
from qbpass.models.dataflow import FLOATS, INTEGERS, attribute


def read_scale(nodes: SiteNodes, flow: Flow) -> float | None:
    """The product of the constant factors on the scores: alpha, Mul, Div, and one on each operand of the product.

    None where a factor is not a scalar constant.
    """
    qk = flow.node(nodes.qk)
    scale = float(attribute(qk, "alpha", 1.0))
    query = flow.producer(qk.input[0])
    factors = [flow.node(name) for name in (*nodes.key_path, *nodes.score_path)]
    for node in ([query] if query is not None else []) + factors:
        factor = constant_factor(node, flow)
        if factor is not None:
            scale *= factor
        elif node is not query and node.op_type in ("Mul", "Div") and not _of_sizes(node, flow):
            return None
    return scale


def element_steps(path: tuple[str, ...], flow: Flow) -> tuple[ElementStep, ...]:
    """The path's casts between float types, and its Mul and Div by a scalar that the path does not make, in order."""
    made = {output for name in path for output in flow.node(name).output}
    found = []
    for name in path:
        node = flow.node(name)
        if casts_floats(node, flow):
            found.append(ElementStep(name, str(node.input[0]), to=flow.elem_type(node.output[0])))
        elif constant_factor(node, flow) is not None:
            kept, factor = _operands(node, flow)
            if factor not in made:
                found.append(ElementStep(name, kept, factor))
    return tuple(found)


def casts_floats(node: onnx.NodeProto, flow: Flow) -> bool:
    """Whether the node is a Cast from a float type to one: each element by itself."""
    return node.op_type == "Cast" and {flow.elem_type(node.input[0]), flow.elem_type(node.output[0])} <= FLOATS


def _operands(node: onnx.NodeProto, flow: Flow) -> tuple[str, str]:
    """(what is multiplied or divided, the scalar)."""
    first, second = map(str, node.input)
    return (second, first) if node.op_type == "Mul" and flow.scalar(first) is not None else (first, second)


def constant_factor(node: onnx.NodeProto, flow: Flow) -> float | None:
    """The scalar constant by which a Mul or Div multiplies its other operand; None for every other node.

    Arithmetic on sizes has none: TorchScript writes an Expand's target as Where(target == -1 * ones, ones, target),
    with as many ones as the keys have axes.
    """
    if _of_sizes(node, flow):
        return None
    if node.op_type == "Mul":
        return next((value for tensor in node.input if (value := flow.scalar(tensor)) is not None), None)
    if node.op_type == "Div":
        value = flow.scalar(node.input[1])
        return 1.0 / value if value else None
    return None


def _of_sizes(node: onnx.NodeProto, flow: Flow) -> bool:
    return flow.elem_type(node.output[0]) in INTEGERS
