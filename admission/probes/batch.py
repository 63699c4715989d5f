"""Batch invariance: a row computed alone against the same row as one of several batch entries."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qbpass.admission.probes.blocks import arranged, as_batch, batch_cuts, can_be_batch, extents, row_cuts, row_of
from qbpass.admission.probes.case import OPEN, Case
from qbpass.admission.probes.kinds import PRODUCTS, SOFTMAXES
from qbpass.admission.probes.probe import Probe, Settings, by_width
from qbpass.admission.probes.trial import Run, Trial, View


def _applies(case: Case) -> bool:
    """Of operators that treat batch entries and rows apart; for others the two are one memory."""
    apart = case.operator in PRODUCTS | SOFTMAXES
    return apart and not case.has_past and can_be_batch(case)


def _trials(case: Case, settings: Settings) -> Iterator[Trial]:
    for n in extents(case, settings.queries):
        for seed in settings.seeds:
            block = case.draw(settings.queries, n, np.random.default_rng(seed))
            alone = [View(Run((row_of(case, block, r, n),)), row_cuts(case, 0)) for r in range(settings.queries)]
            for width in settings.widths:
                for turn in range(width):
                    order = [(turn + place) % width for place in range(width)]
                    together = Run((as_batch(case, arranged(case, block, order, n)),), OPEN)
                    for entry, row in enumerate(order):
                        facts = {"rows": width, "place": entry, "seed": seed} | ({"keys": n} if case.has_keys else {})
                        yield Trial(alone[row], View(together, batch_cuts(case, entry)), facts)


BATCH = Probe("batch", "a row is the same alone and as one of several batch entries", _applies, _trials, by_width)
