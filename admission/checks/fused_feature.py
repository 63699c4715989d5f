"""What it does: refuses a fused attention that turns on something no lowering spells out.

Why it matters: a fused operator is rewritten only where it can be said, operation by operation, what it computes, so
that trials can falsify it. A feature that is left out of what is said would be left out of the rewrite.

Example: normalized queries and keys (`q_norm_weight`), a bias on the projections, scores handed out as a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qbpass.admission.report import Diagnostic

CODE = "FUSED_FEATURE"


def refuse(site: str, operator: str, features: Mapping[str, Any]) -> Diagnostic:
    message = f"{operator} uses {', '.join(features)}, which is not spelled out in separate operations"
    return Diagnostic(CODE, site, message, {"operator": operator, **features})
