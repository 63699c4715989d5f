"""What `qbpass rewrite` says of a fused attention that was lowered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def lowering_lines(evidence: Mapping[str, Any] | None) -> list[str]:
    """Nothing for a site that was never fused. evidence: of rewrites/lowering/evidence.py, where nothing was false."""
    if evidence is None:
        return []
    operator = evidence["operator"]
    tried = {
        "one_row": f"{operator} spelled out in separate products",
        "native": f"{operator} itself over a cache updated in place",
    }
    return [
        f"  {what}: unknown, {evidence[trial]['rows']} rows tried and none differs from the frozen graph's node"
        for trial, what in tried.items()
        if trial in evidence
    ]
