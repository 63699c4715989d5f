"""What a rewrite will do, made and printed without changing a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from qbpass.admission.site import AttentionSite
from qbpass.rewrites.chains.plan import ChainPlan
from qbpass.rewrites.extents import NO_TAIL_EFFECT, ExtentRule
from qbpass.rewrites.phases import Phase
from qbpass.rewrites.row_repair.repair import RowRepair

Layout = Literal["qb", "pq"]
LAYOUTS: tuple[Layout, ...] = ("qb", "pq")

#: gs: no attention is rewritten, the decoder's rows are run one at a time (gs_graph.py).
AnyLayout = Literal["qb", "pq", "gs"]

#: How a product's rows are formed. rows: queries (and the group) stay GEMM rows over shared K/V; batch: each query is
#: a batch entry of one row; batch_transposed: the same over an explicitly transposed K.
ProductForm = Literal["rows", "batch", "batch_transposed"]

#: What a row may not read behind the end that the extent rule gives it. values: the AV product's sum alone; the scores
#: of all columns are computed, and the mask hides those ahead. keys: keys, mask, scores and values, as it reads them
#: alone.
Clip = Literal["values", "keys"]

HeadForm = Literal["all", "asked"]


@dataclass(frozen=True)
class SiteForm:
    """How one site's two products are evaluated under QB, and which key extents its rows must not exceed.

    PQ evaluates the exported products and ends every row at its own extent; `clip` is all that it is told by a form.
    spare: a segment that a call has no rows for evaluates the last row once more, and that is cut off: for kernels that
    refuse to multiply no rows (ONNX Runtime's products over broadcast keys and values, before 1.32).
    """

    qk: ProductForm = "rows"
    av: ProductForm = "batch"
    extents: ExtentRule = NO_TAIL_EFFECT
    clip: Clip = "values"
    spare: bool = False


@dataclass(frozen=True)
class SitePlan:
    site: AttentionSite
    form: SiteForm
    evidence: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class RewritePlan:
    """One layout for every admitted site of a decoder, active in the phases of `phase_mask`.

    sites: attentions of separate products; chains: fused operators.

    head: logits of all rows of a call, as exported, or only from the row the caller asks for (head.py).
    repairs: operators outside attention whose rows are run apart; repair_evidence: every kind's trials, by its label.
    """

    layout: AnyLayout
    phase_mask: int
    max_queries: int
    sites: tuple[SitePlan, ...]
    head: HeadForm = "all"
    head_evidence: Mapping[str, Any] = field(default_factory=dict, compare=False)
    chains: tuple[ChainPlan, ...] = ()
    repairs: tuple[RowRepair, ...] = ()
    repair_evidence: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def extents(self) -> ExtentRule:
        """The rule the cache's prefixes obey: sites share them, so the strictest site decides. PQ slices for itself."""
        if self.layout == "pq":
            return NO_TAIL_EFFECT
        rules = {site.form.extents for site in self.sites}
        if not rules:
            return NO_TAIL_EFFECT
        if len(rules) == 1:
            return rules.pop()
        modulus = max((rule.modulus for rule in rules), default=1)
        residues = sorted({r for rule in rules for r in range(modulus) if rule.exact(r)})
        return ExtentRule(modulus, tuple(residues))

    @property
    def segments(self) -> int:
        return self.extents.segments(self.max_queries)

    def text(self) -> str:
        """A dump for people and tests: one line a site."""
        phases = ", ".join(p.name or "" for p in Phase if p & self.phase_mask) or "none"
        rule = self.extents
        if self.layout == "gs":
            return (
                f"layout gs, active in: {phases}; up to {self.max_queries} rows, each through the whole decoder alone"
            )
        lines = [
            f"layout {self.layout}, active in: {phases}; up to {self.max_queries} queries; "
            f"{self.segments} AV segment(s), exact extents n % {rule.modulus} in {list(rule.residues)}; "
            f"logits of {'the rows asked for' if self.head == 'asked' else 'all rows'}"
        ]
        for entry in self.sites:
            site = entry.site
            lines.append(
                f"  {site.name}: heads {site.heads}/{site.kv_heads}, d {site.head_dim}, "
                f"QK {entry.form.qk}, AV {entry.form.av}{', keys clipped' if entry.form.clip == 'keys' else ''}"
                f"{', spare rows' if entry.form.spare else ''}"
                f"{f', lowered from {site.fused.node.op_type}' if site.fused is not None else ''}"
            )
        for chain in self.chains:
            fused = chain.site
            shape = f"heads {fused.heads}/{fused.kv_heads}, d {fused.head_dim}"
            lines.append(f"  {fused.name}: {shape}, {fused.operator} query by query")
        lines += [
            f"  {repair.kind}: {len(repair.units)} time(s), {repair.rows_per_call} row(s) a call"
            for repair in self.repairs
        ]
        return "\n".join(lines)
