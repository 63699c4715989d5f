"""Row invariance: a row computed alone against the same row at every place of a block."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qbpass.admission.probes.blocks import arranged, extents, row_cuts, row_of
from qbpass.admission.probes.case import Case
from qbpass.admission.probes.probe import Probe, Settings, by_width
from qbpass.admission.probes.trial import Run, Trial, View


def _applies(case: Case) -> bool:
    return case.has_rows and not case.has_past


def _trials(case: Case, settings: Settings) -> Iterator[Trial]:
    for n in extents(case, settings.queries):
        for seed in settings.seeds:
            block = case.draw(settings.queries, n, np.random.default_rng(seed))
            alone = [View(Run((row_of(case, block, r, n),)), row_cuts(case, 0)) for r in range(settings.queries)]
            for width in settings.widths:
                for turn in range(width):
                    order = [(turn + place) % width for place in range(width)]
                    together = Run((arranged(case, block, order, n),))
                    for place, row in enumerate(order):
                        facts = {"rows": width, "place": place, "seed": seed} | ({"keys": n} if case.has_keys else {})
                        yield Trial(alone[row], View(together, row_cuts(case, place)), facts)


ROWS = Probe("rows", "a row is the same alone and in a block, whatever its place", _applies, _trials, by_width)
