"""What it does: reports operators that quantize their input by one scale over all rows of a call, and that can't be run
for one row at a time.

Why it matters: the scale is taken over the whole tensor, so every row's value depends on the other rows of the call. A
rewrite runs such an operator, with what reads its scale, once for each row; where the rows can't be told apart (they
are mixed with another axis, or the scale leaves the graph), a row evaluated with others is another row, whatever
attention does.

Example: `DynamicQuantizeLinear` of hidden states that were reshaped to one axis before they were quantized.
"""

from __future__ import annotations

import onnx

from qbpass.admission.dataflow import Flow, node_name
from qbpass.admission.report import Diagnostic
from qbpass.admission.row_units.rows import Unsplittable
from qbpass.admission.row_units.unit import row_unit

CODE = "DYNAMIC_QUANTIZATION"
_PER_TENSOR = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul"})
NAMED = 8  # nodes that the evidence names
LOOKED_AT = 1024  # quantizers; a model of 100 layers has some 400


def check(flow: Flow, model: str) -> Diagnostic | None:
    quantizers = [node for node in flow.nodes if node.op_type in _PER_TENSOR and node.input[0] in flow.activations]
    coupled = {node_name(node): _coupled(flow, node) for node in quantizers[:LOOKED_AT]}
    coupled |= {node_name(node): f"more than {LOOKED_AT} are not looked at" for node in quantizers[LOOKED_AT:]}
    reasons = {name: reason for name, reason in coupled.items() if reason is not None}
    if not reasons:
        return None
    found = [flow.node(name) for name in reasons]
    kinds = sorted({node.op_type for node in found})
    message = (
        f"{len(found)} operator(s) ({', '.join(kinds)}) scale all rows of a call together and can't be run for one row "
        f"({next(iter(reasons.values()))}), so rows depend on each other; use weight-only quantization"
    )
    shapes = {node.input[0]: list(shape) if (shape := flow.shape(node.input[0])) else None for node in found[:NAMED]}
    evidence = {
        "count": len(found),
        "nodes": list(reasons)[:NAMED],
        "inputs": shapes,
        "reasons": dict(list(reasons.items())[:NAMED]),
    }
    return Diagnostic(CODE, model, message, evidence)


def _coupled(flow: Flow, node: onnx.NodeProto) -> str | None:
    """Why the rows that a quantizer sees together can't be run apart; None where they can."""
    try:
        row_unit(flow, node)
    except Unsplittable as reason:
        return str(reason)
    return None
