"""What it does: refuses a layer that carries a state of fixed size instead of cached keys and values.

Why it matters: such a state (a linear attention's, a state space's, a short convolution's) is overwritten in every
call. There are no rows to view as a batch, and a rejected token can't be taken back by moving a counter.

Example: `com.microsoft::GatedDeltaNet`; `ai.onnx::LinearAttention`; a Mamba layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qbpass.admission.report import Diagnostic

CODE = "LINEAR_ATTENTION"


def refuse(site: str, operator: str, states: Sequence[str], **evidence: Any) -> Diagnostic:
    """states: the tensors that hold the state before and after the call."""
    message = f"{operator} carries a state that each call overwrites, no rows: its tokens can't become a batch"
    return Diagnostic(CODE, site, message, {"operator": operator, "states": list(states), **evidence})
