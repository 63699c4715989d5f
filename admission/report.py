"""What admission says: each site admitted, or refused with coded diagnostics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qbpass.admission.facts import AttentionFacts
from qbpass.admission.fused_site import FusedSite
from qbpass.admission.site import AttentionSite


@dataclass(frozen=True)
class Diagnostic:
    """Why a site is refused. Codes are append-only: a code never changes its meaning."""

    code: str
    site: str
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SiteReport:
    """One site's answer. `site` is None where something looks like attention but could not be read as a site.

    facts: what is known of it in either case. chain: a fused operator that can be evaluated query by query as it is;
    its diagnostics then say why it can't be opened, which is what other layouts would need. lowered: the site that a
    fused operator makes where it is spelled out in primitives (admission/lowering), in the lowered graph's own names.
    """

    name: str
    kind: str
    layer: int
    site: AttentionSite | None
    diagnostics: tuple[Diagnostic, ...] = ()
    facts: AttentionFacts | None = None
    chain: FusedSite | None = None
    lowered: AttentionSite | None = None

    @property
    def admitted(self) -> bool:
        return bool(self.layouts)

    @property
    def layouts(self) -> tuple[str, ...]:
        """The layouts that admission has nothing against, cheapest first as a rule; () where the site is refused."""
        if (self.site is not None or self.lowered is not None) and not self.diagnostics:
            return ("qb", "pq")
        return () if self.chain is None else ("pq",)


@dataclass(frozen=True)
class AdmissionReport:
    """Every attention of a decoder in layer order, and diagnostics that belong to the whole graph."""

    model: str
    sites: tuple[SiteReport, ...]
    graph_diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def admitted(self) -> bool:
        return bool(self.sites) and not self.graph_diagnostics and all(site.admitted for site in self.sites)

    def to_json(self) -> dict[str, Any]:
        """The form `qbpass admit --json` writes (see the README)."""

        def diagnostic(d: Diagnostic) -> dict[str, Any]:
            return {"code": d.code, "message": d.message, "evidence": dict(d.evidence)}

        return {
            "model": self.model,
            "admitted": self.admitted,
            "diagnostics": [diagnostic(d) for d in self.graph_diagnostics],
            "sites": [
                {
                    "name": s.name,
                    "kind": s.kind,
                    "layer": s.layer,
                    "admitted": s.admitted,
                    "layouts": list(s.layouts),
                    "diagnostics": [diagnostic(d) for d in s.diagnostics],
                    "facts": None if s.facts is None else s.facts.to_json(),
                }
                for s in self.sites
            ],
        }
