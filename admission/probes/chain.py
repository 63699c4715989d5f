"""Fused attention with a KV cache: a block of rows against a chain of one-row calls, each taking the present of the one
before as its past.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qbpass.admission.probes.blocks import row_cuts, row_of
from qbpass.admission.probes.case import Case
from qbpass.admission.probes.probe import Probe, Settings, by_width
from qbpass.admission.probes.trial import Carried, Cut, Feeds, Run, Trial, View
from qbpass.models.dataflow import attribute

PASTS = (*range(1, 18), 31, 32, 63, 64, 100, 255, 256, 736)


def _applies(case: Case) -> bool:
    return case.has_past and case.has_rows


def _trials(case: Case, settings: Settings) -> Iterator[Trial]:
    for past in _pasts(case):
        for seed in settings.seeds[:1]:
            for width in settings.widths:
                block = case.draw(width, past + width, np.random.default_rng((seed, past)))
                together = Run((block,))
                for row in range(width):
                    alone = Run(tuple(_link(case, block, past, j) for j in range(row + 1)))
                    facts = {"rows": width, "place": row, "past": past, "seed": seed}
                    yield Trial(View(alone, _cuts(case, 0, None)), View(together, _cuts(case, row, None)), facts)
                    if row == width - 1:
                        whole = _cuts(case, 0, past + width)
                        yield Trial(View(alone, whole), View(together, whole), facts | {"cache": 1})


def _pasts(case: Case) -> list[int]:
    """Short and long ones; around a window's length, too, where the operator has a window that must be full."""
    window = int(attribute(case.nodes[0], "local_window_size", -1))
    return sorted({*PASTS, *(window + k for k in range(9) if window > 0)})


def _link(case: Case, block: dict[str, np.ndarray], past: int, row: int) -> Feeds:
    """The one-row call of a row: its own counts, its own keys, and the cache the row before left."""
    n = past + row + 1
    call: dict[str, np.ndarray | Carried] = dict(row_of(case, block, row, n))
    for operand in case.operands:
        if operand.key_axis is not None:
            call[operand.name] = np.take(call[operand.name], np.arange(n), axis=operand.key_axis)  # type: ignore[arg-type]
        if operand.name in case.carried and row:
            call[operand.name] = Carried(case.carried[operand.name])
    return call


def _cuts(case: Case, row: int, keys: int | None) -> dict[str, tuple[Cut, ...]]:
    """A row of the results with rows; or the present, as far as `keys`."""
    if keys is None:
        with_rows = {result.name for result in case.results if result.row_axis is not None}
        return {name: cuts for name, cuts in row_cuts(case, row).items() if name in with_rows}
    return {r.name: (Cut(r.key_axis, 0, keys),) for r in case.results if r.key_axis is not None}


CHAIN = Probe("chain", "a block of rows equals a chain of one-row calls", _applies, _trials, by_width)
