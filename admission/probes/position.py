"""Position: a block that holds one row several times gives it back the same each time.

An element-wise kernel works on as many elements as fit a vector register and finishes the rest one by one; where rows
do not fill registers, a row's place decides which of its elements are among the rest.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qbpass.admission.probes.batch import BATCH
from qbpass.admission.probes.blocks import arranged, as_batch, batch_cuts, extents, row_cuts
from qbpass.admission.probes.case import OPEN, Case
from qbpass.admission.probes.probe import Probe, Settings, by_width
from qbpass.admission.probes.trial import Run, Trial, View


def _applies(case: Case) -> bool:
    return case.has_rows and not case.has_past


def _trials(case: Case, settings: Settings) -> Iterator[Trial]:
    forms = [(False, row_cuts)] + ([(True, batch_cuts)] if BATCH.applies(case) else [])
    for n in extents(case, settings.queries):
        for seed in settings.seeds:
            block = case.draw(settings.queries, n, np.random.default_rng(seed))
            for width in settings.widths:
                repeated = arranged(case, block, [0] * width, n)
                for batched, cuts in forms:
                    run = Run((as_batch(case, repeated),), OPEN) if batched else Run((repeated,))
                    for place in range(1, width):
                        facts = {"rows": width, "place": place, "batch": int(batched), "seed": seed}
                        facts |= {"keys": n} if case.has_keys else {}
                        yield Trial(View(run, cuts(case, 0)), View(run, cuts(case, place)), facts)


POSITION = Probe(
    "position", "equal rows of a block have equal results, whatever their place", _applies, _trials, by_width
)
