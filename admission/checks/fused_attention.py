"""What it does: refuses an attention that is one fused operator.

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
        "nothing shown of separate products holds for it; export with decomposed attention (--attention eager or sdpa)"
    )
    operator = f"{node.domain or 'ai.onnx'}::{node.op_type}"
    return Diagnostic(CODE, site, message, {"node": node_name(node), "operator": operator, "inputs": list(node.input)})
