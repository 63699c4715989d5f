"""What it does: reports operators that quantize their input by one scale over all rows of a call.

Why it matters: the scale is taken over the whole tensor, so every row's value depends on the other rows of the call: a
row evaluated with others is another one, whatever attention does.

Example: `DynamicQuantizeLinear` before MatMulInteger in a dynamically quantized int8 export.
"""

from __future__ import annotations

from qbpass.admission.dataflow import Flow, node_name
from qbpass.admission.report import Diagnostic

CODE = "DYNAMIC_QUANTIZATION"
_PER_TENSOR = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul"})
NAMED = 8  # nodes that the evidence names


def check(flow: Flow, model: str) -> Diagnostic | None:
    found = [node for node in flow.nodes if node.op_type in _PER_TENSOR and node.input[0] in flow.activations]
    if not found:
        return None
    kinds = sorted({node.op_type for node in found})
    message = (
        f"{len(found)} operator(s) ({', '.join(kinds)}) scale all rows of a call together, so rows depend on each "
        "other; use weight-only quantization"
    )
    shapes = {node.input[0]: list(shape) if (shape := flow.shape(node.input[0])) else None for node in found[:NAMED]}
    evidence = {"count": len(found), "nodes": [node_name(node) for node in found[:NAMED]], "inputs": shapes}
    return Diagnostic(CODE, model, message, evidence)
