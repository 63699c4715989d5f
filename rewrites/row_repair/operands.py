"""What a unit is tried on: activations drawn from a seed, its rows of one size or of very different sizes."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from onnx import helper

from qbpass.admission.dataflow import Flow
from qbpass.admission.probes.fills import aligned
from qbpass.admission.row_units.unit import RowUnit

Array = np.ndarray[Any, Any]

#: even: normal rows. uneven: each row's values are another number of times larger, so that a scale that rows share
#: moves.
Sizes = Literal["even", "uneven"]
SIZES: tuple[Sizes, ...] = ("even", "uneven")
UNEVEN = (1.0, 64.0, 1 / 64, 8.0)
PAST = 5  # rows before the call, where an operand has an axis of keys

_NON_NEGATIVE = frozenset({"Sqrt", "Log"})


def draw(flow: Flow, unit: RowUnit, rows: int, seed: int, sizes: Sizes) -> dict[str, Array]:
    """The unit's row operands for a call of `rows` rows. Whole numbers that hold positions count the rows."""
    random = np.random.default_rng(seed)
    positive = any(flow.node(name).op_type in _NON_NEGATIVE for name in unit.nodes)
    operands = {}
    for name, axis in unit.rows:
        shape = tuple(size or 0 for size in (e and e.at(rows, PAST) for e in flow.extents(name) or ()))
        values = _values(shape, axis, helper.tensor_dtype_to_np_dtype(flow.elem_type(name)), random, sizes)
        operands[name] = np.abs(values) if positive and values.dtype.kind == "f" else values
    return operands


def take(unit: RowUnit, operands: dict[str, Array], rows: list[int]) -> dict[str, Array]:
    """The operands of a call that has those rows, in that order, placed as ONNX Runtime places its own tensors."""
    return {name: aligned(np.take(operands[name], rows, axis=axis)) for name, axis in unit.rows}


def _values(
    shape: tuple[int, ...], axis: int, dtype: np.dtype[Any], random: np.random.Generator, sizes: Sizes
) -> Array:
    along = [length if place == axis else 1 for place, length in enumerate(shape)]
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        if dtype.itemsize > 1:
            return np.broadcast_to(np.arange(shape[axis]).reshape(along), shape).astype(dtype)
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    values = random.standard_normal(shape, dtype=np.float32)
    if sizes == "uneven":
        values *= np.resize(np.array(UNEVEN, np.float32), shape[axis]).reshape(along)
    return values.astype(dtype)
