"""What is planned for one fused site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qbpass.admission.fused_site import FusedSite


@dataclass(frozen=True)
class ChainPlan:
    """One fused operator evaluated query by query. evidence: what was tried on this machine (falsify.py)."""

    site: FusedSite
    evidence: Mapping[str, Any] = field(default_factory=dict, compare=False)
