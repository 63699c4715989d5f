"""What it does: refuses an attention that is one fused operator.

Why it matters: inside a fused kernel neither the order of its sums nor what it does for several queries can be seen
or changed; it has to be lowered or run query by query.

Example: `com.microsoft::GroupQueryAttention`, `ai.onnx::Attention`.
"""

from __future__ import annotations

import onnx

from qbpass.admission.dataflow import node_name
from qbpass.admission.report import Diagnostic

CODE = "FUSED_ATTENTION"


def refuse(node: onnx.NodeProto, site: str) -> Diagnostic:
    message = f"{node.op_type} is one fused operator; export with decomposed attention (--attention eager or sdpa)"
    operator = f"{node.domain or 'ai.onnx'}::{node.op_type}"
    return Diagnostic(CODE, site, message, {"node": node_name(node), "operator": operator, "inputs": list(node.input)})
