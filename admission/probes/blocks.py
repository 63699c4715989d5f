"""Rows of a call: taken out, put together in another order, turned into batch entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qbpass.admission.probes.case import Case, Operand, Result, Tensor
from qbpass.admission.probes.fills import Array
from qbpass.admission.probes.trial import Cut

Values = Mapping[str, Array]

#: Numbers of keys at which rows are compared: short, unaligned, aligned, and longer than a kernel's tile.
EXTENTS = (5, 31, 64, 100, 257, 737)


def extents(case: Case, least: int) -> tuple[int, ...]:
    """Numbers of keys to try; one of no meaning for a case without keys."""
    return tuple(n for n in EXTENTS if n >= least) if case.has_keys else (least,)


def row_of(case: Case, values: Values, row: int, n: int) -> dict[str, Array]:
    """The operands of one row of a block over n keys; those without rows are the block's own."""
    return arranged(case, values, [row], n)


def arranged(case: Case, values: Values, rows: Sequence[int], n: int) -> dict[str, Array]:
    """A block of the given rows of another block over n keys, in that order. A row may come more than once."""
    block = dict(values)
    for operand in case.operands:
        axis = operand.row_axis
        if axis is not None:
            block[operand.name] = np.concatenate([_part(values, operand, axis, row) for row in rows], axis=axis)
    return block | counts(case, len(rows), n)


def counts(case: Case, q: int, n: int) -> dict[str, Array]:
    """The operands that follow the call's sizes (shapes, lengths), for a call of q rows over n keys."""
    unused = np.random.default_rng(0)
    return {o.name: o.draw(q, n, unused) for o in case.operands if o.fill.kind == "affine"}


def _part(values: Values, operand: Operand, axis: int, row: int) -> Array:
    per_row = operand.dims[axis].rows
    return np.take(values[operand.name], np.arange(row * per_row, (row + 1) * per_row), axis=axis)


def row_cuts(case: Case, row: int) -> dict[str, tuple[Cut, ...]]:
    """A row's part of every result; a result without rows belongs to each row as a whole."""
    return {result.name: _row_cut(result, result.row_axis, row) for result in case.results}


def _row_cut(result: Result, axis: int | None, row: int) -> tuple[Cut, ...]:
    if axis is None:
        return ()
    per_row = result.dims[axis].rows
    return (Cut(axis, row * per_row, (row + 1) * per_row),)


def can_be_batch(case: Case) -> bool:
    """Whether rows can become batch entries: each tensor with rows has them behind a first axis of length 1, all of
    one rank, and every tensor without rows broadcasts along the first axis.
    """
    tensors: list[Tensor] = [*case.operands, *case.results]
    entries = [entry for entry in tensors if entry.row_axis is not None]
    ranks = {len(entry.dims) for entry in entries}
    if not entries or len(ranks) != 1 or any(result.row_axis is None for result in case.results):
        return False
    rank = next(iter(ranks))
    still = [len(operand.dims) for operand in case.operands if operand.row_axis is None and _is_batched(operand, rank)]
    return not still and all(_leads(entry) for entry in entries)


def _leads(entry: Tensor) -> bool:
    axis = entry.row_axis
    lead = entry.dims[0]
    return axis not in (None, 0) and lead.is_fixed and lead.fixed == 1 and entry.dims[axis or 0].rows == 1


def _is_batched(operand: Operand, rank: int) -> bool:
    """Has a first axis that a batch of rows would have to match."""
    return len(operand.dims) == rank and not (operand.dims[0].is_fixed and operand.dims[0].fixed == 1)


def as_batch(case: Case, values: Values) -> dict[str, Array]:
    """The block with its rows as batch entries: the first axis and the axis of rows change places."""
    turned = dict(values)
    for operand in case.operands:
        axis = operand.row_axis
        if axis is not None:
            turned[operand.name] = np.ascontiguousarray(np.swapaxes(values[operand.name], 0, axis))
    return turned


def batch_cuts(case: Case, entry: int) -> dict[str, tuple[Cut, ...]]:
    """A batch entry of every result: has the shape of the row it is."""
    return {result.name: (Cut(0, entry, entry + 1),) for result in case.results}
