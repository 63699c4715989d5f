"""What it does: refuses an attention whose head counts or head dimensions are not constants of the graph.

Why it matters: which KV head a query head reads (h // group) can't be proven for head counts that are not known.

Example: Q of shape `(1, heads, queries, 64)` with a symbolic `heads`, or a graph without shapes behind a Reshape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qbpass.admission.found import Found
from qbpass.admission.report import Diagnostic

CODE = "UNKNOWN_SHAPE"


def refuse(found: Found, shapes: Mapping[str, Any]) -> Diagnostic:
    message = "head counts or head dimensions are no constants of the graph; export with fixed head counts"
    return Diagnostic(CODE, found.name, message, {"shapes": dict(shapes)})
