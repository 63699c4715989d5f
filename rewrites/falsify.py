"""Tries to prove a site's form wrong on this machine: blocks of rows against the same rows alone, byte for byte.

A falsifier can only prove `false`, with a witness. A form it does not falsify is `unknown`, and is what a plan may use
until the forced replay of the whole model says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from qbpass.admission.site import AttentionSite
from qbpass.models.decoder import Decoder
from qbpass.models.session import SessionSpec
from qbpass.rewrites.extents import EVERY_ROW_EXACT, NO_TAIL_EFFECT, ExtentRule
from qbpass.rewrites.plan import Layout, RewritePlan, SiteForm, SitePlan
from qbpass.rewrites.site_runner import SiteRunner, random_operands

#: Pasts whose blocks are tried: every alignment modulo 16 while short, then around lengths where kernels change tiles.
PASTS = (*range(0, 20), *range(61, 69), *range(253, 261), *range(509, 514), *range(1021, 1026))


@dataclass(frozen=True)
class Witness:
    """Operands that show a difference: replay with `random_operands(site, extent, seed)`."""

    past: int
    queries: int
    row: int
    extent: int
    seed: int
    max_abs_difference: float


@dataclass
class Trial:
    """What a form was tried on and what was found."""

    form: SiteForm
    rows: int = 0
    differing: list[Witness] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        verdict = "false" if self.differing else "unknown"
        witness = asdict(self.differing[0]) if self.differing else None
        return {
            "qk": self.form.qk,
            "av": self.form.av,
            "exact_extents": asdict(self.form.extents),
            "clip": self.form.clip,
            **({"spare": True} if self.form.spare else {}),
            "verdict": verdict,
            "rows": self.rows,
            "rows_differing": len(self.differing),
            "witness": witness,
        }


class SiteFalsifier:
    """Holds the serial rows of one site, and tries forms against them."""

    def __init__(
        self,
        frozen: Decoder,
        layout: Layout,
        site: AttentionSite,
        all_sites: Iterable[AttentionSite],
        max_queries: int,
        spec: SessionSpec,
        seed: int = 0,
        pasts: Iterable[int] = PASTS,
    ):
        self.frozen, self.layout, self.site, self.spec = frozen, layout, site, spec
        self.all_sites, self.max_queries, self.seed = tuple(all_sites), max_queries, seed
        self.pasts = self._within(pasts, max_queries)
        reach = max(self.pasts) + max_queries
        self.operands: Any = self._random(reach)
        positions = sorted({p + j for p in self.pasts for j in range(max_queries)})
        self.serial = self._serial_rows(positions)

    def _within(self, pasts: Iterable[int], max_queries: int) -> tuple[int, ...]:
        """The pasts that the site can be tried at."""
        return tuple(pasts)

    def _random(self, reach: int) -> Any:
        return random_operands(self.site, reach, self.seed)

    def _serial_rows(self, positions: list[int]) -> dict[int, np.ndarray]:
        """Each position's row as serial decoding computes it, (1, H, 1, dv)."""
        native = SiteRunner(self.frozen, self._plan(SiteForm()), self.site, "native", self.spec)
        return {p: native.block(self.operands, p, 1) for p in positions}

    def _runner(self, form: SiteForm) -> Any:
        """The active layout in that form: `block(operands, past, queries)` gives (1, H, q, dv)."""
        return SiteRunner(self.frozen, self._plan(form), self.site, "active", self.spec)

    def _plan(self, form: SiteForm) -> RewritePlan:
        return RewritePlan(self.layout, 2, self.max_queries, tuple(SitePlan(s, form) for s in self.all_sites))

    def trial(self, form: SiteForm) -> Trial:
        """Every block of 1 .. max_queries rows behind every past."""
        runner = self._runner(form)
        result = Trial(form)
        for past in self.pasts:
            for queries in range(1, self.max_queries + 1):
                block = runner.block(self.operands, past, queries)
                for row in range(queries):
                    result.rows += 1
                    self._compare(result, block, past, queries, row)
        return result

    def _compare(self, result: Trial, block: np.ndarray, past: int, queries: int, row: int) -> None:
        got = np.ascontiguousarray(block[:, :, row : row + 1])
        want = self.serial[past + row]
        if got.tobytes() != want.tobytes():
            gap = float(np.max(np.abs(got.astype(np.float64) - want.astype(np.float64))))
            result.differing.append(Witness(past, queries, row, past + row + 1, self.seed, gap))


def tail_rule(trial: Trial, pasts: Iterable[int], max_queries: int) -> ExtentRule | None:
    """The extents that must be the last column their row reads, from a trial that let every row read the whole block.

    None where rows that had no tail differ too: then no rule can mend the form.
    """
    if any(w.extent == w.past + w.queries for w in trial.differing):
        return None
    differing = {w.extent for w in trial.differing}
    if not differing:
        return NO_TAIL_EFFECT
    tried = {past + row + 1 for past in pasts for q in range(1, max_queries + 1) for row in range(q - 1)}
    for modulus in (1, 2, 4, 8, 16):
        residues = {extent % modulus for extent in differing}
        claimed = {extent for extent in tried if extent % modulus in residues}
        # Two sums can agree by chance, most of all in short rows, so a class need not differ at every extent. A rule
        # that claims too little is caught by the trial that follows; one that claims too much only costs a segment.
        if len(differing) >= 0.8 * len(claimed):
            return ExtentRule(modulus, tuple(sorted(residues)))
    return EVERY_ROW_EXACT
