"""Row coupling: a row of a block, while the other rows change. One scale over a whole tensor couples its rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qbpass.admission.probes.blocks import Values, arranged, extents, row_cuts
from qbpass.admission.probes.case import Case
from qbpass.admission.probes.probe import Probe, Settings, by_width
from qbpass.admission.probes.trial import Run, Trial, View

LOUDER = 64  # times the values of the rows that change: wide enough for any common scale to move


def _applies(case: Case) -> bool:
    return case.has_rows and not case.has_past


def _trials(case: Case, settings: Settings) -> Iterator[Trial]:
    for n in extents(case, settings.queries)[:3]:
        for seed in settings.seeds:
            random = np.random.default_rng(seed)
            block, other = (case.draw(settings.queries, n, random) for _ in range(2))
            for width in settings.widths:
                soft = arranged(case, block, range(width), n)
                quiet = Run((soft,))
                loud = arranged(case, _louder(case, other), range(width), n)
                for row in range(width):
                    changed = Run((_with_row(case, soft, loud, row),))
                    facts = {"rows": width, "place": row, "seed": seed} | ({"keys": n} if case.has_keys else {})
                    cuts = row_cuts(case, row)
                    yield Trial(View(quiet, cuts), View(changed, cuts), facts)


def _with_row(case: Case, block: Values, others: Values, row: int) -> dict[str, np.ndarray]:
    """`others` with one row of `block` in its place; operands without rows are the block's."""
    mixed = dict(block)
    for operand in case.operands:
        axis = operand.row_axis
        if axis is not None and not operand.fill.masks:
            values, per_row = others[operand.name].copy(), operand.dims[axis].rows
            place = [slice(None)] * values.ndim
            place[axis] = slice(row * per_row, (row + 1) * per_row)
            values[tuple(place)] = block[operand.name][tuple(place)]
            mixed[operand.name] = values
    return mixed


def _louder(case: Case, values: Values) -> dict[str, np.ndarray]:
    scaled = {operand.name for operand in case.operands if operand.fill.kind in ("normal", "positive")}
    return {name: (v * LOUDER).astype(v.dtype) if name in scaled else v for name, v in values.items()}


COUPLING = Probe("coupling", "a row of a block does not depend on the block's other rows", _applies, _trials, by_width)
