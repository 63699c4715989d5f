"""Two forms of one computation: queries as batch entries in the graph, and a fused operator spelled out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from qbpass.admission.probes.blocks import arranged, extents, row_cuts, row_of
from qbpass.admission.probes.case import Case
from qbpass.admission.probes.core import QUERY_TO_BATCH, SHARED
from qbpass.admission.probes.probe import Probe, Settings, by_width
from qbpass.admission.probes.trial import Run, Trial, View

LOWERED = "lowered"  # the form that spells a fused operator out


def _has(form: str) -> Callable[[Case], bool]:
    return lambda case: form in case.forms


def _batched(form: str) -> Callable[[Case, Settings], Iterator[Trial]]:
    def trials(case: Case, settings: Settings) -> Iterator[Trial]:
        """Blocks of 1, 2, .. rows in the other form against the graph's form with one row, over the same keys."""
        for n in extents(case, settings.queries):
            for seed in settings.seeds:
                block = case.draw(settings.queries, n, np.random.default_rng(seed))
                alone = [View(Run((row_of(case, block, r, n),)), row_cuts(case, 0)) for r in range(settings.queries)]
                for width in range(1, settings.queries + 1):
                    together = Run((arranged(case, block, range(width), n),), form)
                    for row in range(width):
                        facts = {"rows": width, "place": row, "keys": n, "seed": seed}
                        yield Trial(alone[row], View(together, row_cuts(case, row)), facts)

    return trials


def _lowered(case: Case, settings: Settings) -> Iterator[Trial]:
    """The same call in both forms."""
    for n in extents(case, settings.queries + 1):
        for seed in settings.seeds:
            for width in range(1, settings.queries + 1):
                block = case.draw(width, n, np.random.default_rng(seed))
                spelled = {r.name: () for r in case.results[:1]}
                one, other = View(Run((block,)), spelled), View(Run((block,), LOWERED), spelled)
                yield Trial(one, other, {"rows": width, "keys": n, "seed": seed})


QUERIES_AS_BATCH = Probe(
    "query_to_batch",
    "attention with queries as batch entries equals attention of one query at a time",
    _has(QUERY_TO_BATCH),
    _batched(QUERY_TO_BATCH),
    by_width,
)
SHARED_KV = Probe(
    "query_to_batch_shared",
    "attention with queries as batch entries over shared K and V equals attention of one query at a time",
    _has(SHARED),
    _batched(SHARED),
    by_width,
)
LOWERING = Probe("lowering", "a fused operator equals its spelled-out form", _has(LOWERED), _lowered, by_width)
