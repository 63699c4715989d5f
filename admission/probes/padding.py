"""Padding invariance: one row over its own n keys against the same row with a masked tail behind them.

In a block, the rows before the last read such a tail: the keys of the rows behind them, masked. Whether it shows can
depend on n modulo the width of a kernel's inner loop, so answers are given by residue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qbpass.admission.probes.blocks import counts
from qbpass.admission.probes.case import Case
from qbpass.admission.probes.fills import Array
from qbpass.admission.probes.kinds import PRODUCTS, SOFTMAXES
from qbpass.admission.probes.probe import Probe, Settings, Tried, differing
from qbpass.admission.probes.trial import Cut, Run, Trial, View
from qbpass.models.dataflow import attribute

#: Every residue modulo 16 several times while short, then around lengths at which kernels change tiles.
KEYS = (*range(1, 69), *range(125, 133), *range(253, 261), *range(1021, 1029))
MODULI = (2, 4, 8, 16)
#: A residue class is said to be one that changes where this share of the lengths tried in it do: two sums can agree by
#: chance, most of all in short rows.
SHARE = 0.8

Tail = Mapping[str, float]  # operand -> what its tail holds; operands not named hold anything


def tails(case: Case) -> list[Tail]:
    """What a masked tail is for this case; [] where a tail is not masked, so that a change would prove nothing."""
    keyed = [operand for operand in case.operands if operand.key_axis is not None]
    if not keyed or case.has_past:
        return []
    masks = [operand for operand in keyed if operand.fill.masks or operand.fill.kind == "bits"]  # False masks, too
    through = all(result.key_axis is not None for result in case.results)
    if len(case.nodes) > 1 or case.operator in ("Attention", "MultiHeadAttention"):
        return [{operand.name: operand.fill.low for operand in masks}] if masks else []
    if case.operator in SOFTMAXES:
        lowest = float(np.finfo(np.float16 if keyed[0].elem_type == 10 else np.float32).min)
        return [{keyed[0].name: low} for low in (-np.inf, lowest)] if _over_keys(case) else [{}]
    if case.operator == "ReduceMax":
        return [{keyed[0].name: -np.inf}] if not through else [{}]
    if case.operator == "ReduceSum" and not through:
        return [{keyed[0].name: 0.0}]
    if case.operator in PRODUCTS and not through:
        return [{keyed[0].name: 0.0}]
    return [{}] if through else []


def _over_keys(case: Case) -> bool:
    operand = case.operands[0]
    axis = int(attribute(case.nodes[0], "axis", -1))
    return operand.key_axis == axis % len(operand.dims)


def _applies(case: Case) -> bool:
    return bool(tails(case))


def _trials(case: Case, settings: Settings) -> Iterator[Trial]:
    for index, tail in enumerate(tails(case)):
        for seed in settings.seeds:
            for n in KEYS:
                random = np.random.default_rng((seed, n))
                wide = case.draw(1, n + settings.queries - 1, random)
                alone = View(Run((_keys(case, wide, n, n, {}),)), _key_cuts(case, n))
                for extra in range(1, settings.queries):
                    run = Run((_keys(case, wide, n, n + extra, tail),))
                    yield Trial(
                        alone, View(run, _key_cuts(case, n)), {"keys": n, "tail": extra, "fill": index, "seed": seed}
                    )


def _keys(case: Case, values: Mapping[str, Array], own: int, kept: int, tail: Tail) -> dict[str, Array]:
    """The first `kept` keys; behind the first `own`, operands hold their tail."""
    call = dict(values)
    for operand in case.operands:
        axis = operand.key_axis
        if axis is None:
            continue
        part = np.take(values[operand.name], np.arange(kept), axis=axis)
        if operand.name in tail and kept > own:
            place = [slice(None)] * part.ndim
            place[axis] = slice(own, kept)
            part[tuple(place)] = tail[operand.name]
        call[operand.name] = part
    return call | counts(case, 1, kept)


def _key_cuts(case: Case, n: int) -> dict[str, tuple[Cut, ...]]:
    """Results as far as the row's own keys reach."""
    return {r.name: () if r.key_axis is None else (Cut(r.key_axis, 0, n),) for r in case.results}


def residues(tried: Sequence[Tried]) -> dict[str, Any]:
    """Modulus -> residues of n at which a tail shows, and the smallest modulus that explains all of them."""
    bad, seen = set(differing(tried, "keys")), {facts["keys"] for facts, _ in tried}
    table = {str(m): sorted({n % m for n in bad}) for m in MODULI}
    rule = None
    for m in MODULI:
        claimed = {n for n in seen if n % m in table[str(m)]}
        if bad and len(table[str(m)]) < m and len(bad) >= SHARE * len(claimed):
            rule = {"modulus": m, "residues": table[str(m)]}
            break
    return {"keys_tried": len(seen), "keys_differing": len(bad), "residues": table, "explained_by": rule}


PADDING = Probe("padding", "a masked tail behind a row's own keys does not change the row", _applies, _trials, residues)
