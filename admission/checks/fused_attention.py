"""What it does: says that an attention is one fused operator, which can't be opened. Where it can be evaluated query by
query as it is, the site is admitted for that (layout pq), and this says why for nothing else.

Why it matters: "A fused attention kernel may choose a different numerical and memory schedule, and cannot inherit
this non-flash result" (section 3.3 of the paper). Inside it neither the order of its sums nor what it does for several
queries can be seen or changed; it has to be lowered, or run query by query. What its attributes and operands turn on
is listed under codes of its own.

Example: `com.microsoft::GroupQueryAttention`, `ai.onnx::Attention`.
"""

from __future__ import annotations

import onnx

from qbpass.admission.dataflow import node_name
from qbpass.admission.report import Diagnostic

CODE = "FUSED_ATTENTION"


def refuse(node: onnx.NodeProto, site: str) -> Diagnostic:
    message = (
        f"{node.op_type} is one fused operator: its kernel may choose another numerical and memory schedule, so "
        "nothing shown of separate products holds for it; it is left whole, or exported decomposed (--attention eager)"
    )
    operator = f"{node.domain or 'ai.onnx'}::{node.op_type}"
    return Diagnostic(CODE, site, message, {"node": node_name(node), "operator": operator, "inputs": list(node.input)})
