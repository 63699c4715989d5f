"""Layout operations of ONNX on views. Each gives the view the operator's result is, or None where it must copy.

Operands are as in the operators' own definitions (ai.onnx opset 13 and later; com.microsoft::FusedMatMul for
`product_operand`), shapes resolved: no -1 and no 0 that stands for another size. A size that does not fit raises
ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from qbpass.admission.strides.view import View, row_major, without_axes

Shape = Sequence[int]


def reshape(view: View, shape: Shape) -> View | None:
    """None where no strides reach the elements in row-major order: then a copy is needed.

    The rule is numpy's (`_attempt_nocopy_reshape`, numpy/_core/src/multiarray/shape.c): old and new axes are matched in
    groups of equal size, and each group of old axes must be one run of constant stride.
    """
    new = tuple(int(extent) for extent in shape)
    if math.prod(new) != view.size:
        raise ValueError(f"{view.size} elements can't be reshaped to {list(new)}")
    if view.size == 0:
        return replace(view, shape=new, strides=row_major(new, view.elem_size))
    old = [(view.shape[axis], view.strides[axis]) for axis in range(len(view.shape)) if view.shape[axis] != 1]
    strides: list[int] = []
    at = 0
    for start, end, count in _groups(new, [extent for extent, _ in old]):
        run = _one_run(old[at : at + count])
        if run is None:
            return None
        strides += [run * step for step in row_major(new[start:end], 1)]
        at += count
    return replace(view, shape=new, strides=tuple(strides))


def _groups(new: tuple[int, ...], old: list[int]) -> list[tuple[int, int, int]]:
    """(first new axis, new axis behind the last, number of old axes) of the smallest groups of equal size."""
    groups = []
    start = at = 0
    while start < len(new):
        end, count, wide, held = start + 1, 0, new[start], 1
        while wide != held:
            if wide < held:
                wide *= new[end]
                end += 1
            else:
                held *= old[at + count]
                count += 1
        groups.append((start, end, count))
        start, at = end, at + count
    return groups


def _one_run(axes: list[tuple[int, int]]) -> int | None:
    """The stride of the innermost axis, if the axes (extent, stride) are one run of that stride; 0 for no axes."""
    if not axes:
        return 0
    for (_, outer), (extent, inner) in pairwise(axes):
        if outer != extent * inner:
            return None
    return axes[-1][1]


def transpose(view: View, perm: Shape) -> View:
    if sorted(perm) != list(range(len(view.shape))):
        raise ValueError(f"{list(perm)} is no permutation of {len(view.shape)} axes")
    return _axes(view, [(view.shape[axis], view.strides[axis]) for axis in perm])


def unsqueeze(view: View, axes: Shape) -> View:
    rank = len(view.shape) + len(axes)
    places = {axis % rank for axis in axes}
    old = iter(zip(view.shape, view.strides, strict=True))
    return _axes(view, [(1, 0) if axis in places else next(old) for axis in range(rank)])


def squeeze(view: View, axes: Shape | None = None) -> View:
    rank = len(view.shape)
    gone = {axis % rank for axis in axes} if axes is not None else {a for a in range(rank) if view.shape[a] == 1}
    if any(view.shape[axis] != 1 for axis in gone):
        raise ValueError(f"{list(view.shape)} can't be squeezed at {sorted(gone)}")
    shape, strides = without_axes(view.shape, view.strides, tuple(gone))
    return replace(view, shape=shape, strides=strides)


def expand(view: View, shape: Shape) -> View:
    """Both shapes broadcast against each other, as Expand has it: an axis of one element is shared, stride zero."""
    rank = max(len(shape), len(view.shape))
    wanted = (1,) * (rank - len(shape)) + tuple(shape)
    held = [(1, 0)] * (rank - len(view.shape)) + list(zip(view.shape, view.strides, strict=True))
    axes = []
    for (extent, stride), want in zip(held, wanted, strict=True):
        if extent not in (want, 1) and want != 1:
            raise ValueError(f"{list(view.shape)} can't be expanded to {list(shape)}")
        axes.append((want, 0) if extent == 1 and want != 1 else (extent, stride))
    return _axes(view, axes)


def take(view: View, starts: Shape, ends: Shape, axes: Shape, steps: Shape) -> View:
    """Slice, negative steps included."""
    shape, strides, offset = list(view.shape), list(view.strides), view.offset
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        first, last, stride = slice(start, end, step).indices(view.shape[axis])
        count = len(range(first, last, stride))
        offset += first * view.strides[axis] if count else 0
        shape[axis], strides[axis] = count, view.strides[axis] * stride
    return replace(view, shape=tuple(shape), strides=tuple(strides), offset=offset)


def split(view: View, axis: int, sizes: Shape) -> list[View]:
    if sum(sizes) != view.shape[axis]:
        raise ValueError(f"{view.shape[axis]} can't be split into {list(sizes)}")
    ends = [int(end) for end in np.cumsum(sizes)]
    return [take(view, [end - size], [end], [axis], [1]) for size, end in zip(sizes, ends, strict=True)]


def gather(view: View, indices: np.ndarray[Any, Any], axis: int) -> View | None:
    """A scalar index drops the axis, evenly spaced indices are a slice; any others must be copied together."""
    extent = view.shape[axis]
    rows = [int(index) for index in np.asarray(indices).reshape(-1)]
    if any(not -extent <= row < extent for row in rows):
        raise ValueError(f"index out of range for {extent} rows")
    rows = [row % extent for row in rows]
    step = rows[1] - rows[0] if len(rows) > 1 else 1
    if any(b - a != step for a, b in pairwise(rows)) or np.ndim(indices) > 1:
        return None
    stride = view.strides[axis] * step
    axes = list(zip(view.shape, view.strides, strict=True))
    axes[axis : axis % len(axes) + 1] = [] if np.ndim(indices) == 0 else [(len(rows), stride)]
    first = rows[0] * view.strides[axis] if rows else 0
    return replace(_axes(view, axes), offset=view.offset + first)


def flatten(view: View, axis: int = 1) -> View | None:
    axis = axis + len(view.shape) if axis < 0 else axis
    return reshape(view, (math.prod(view.shape[:axis]), math.prod(view.shape[axis:])))


def product_operand(view: View, *, trans: bool = False, trans_batch: bool = False) -> View:
    """An operand of FusedMatMul as its product reads it, batch axes first.

    transBatch: (b0, .., r, c) is read with its first axis next to last, so that (n, Hkv, d) is Hkv matrices (n, d);
    trans: the last two axes change places, after that.
    """
    axes = list(range(len(view.shape)))
    if trans_batch and len(axes) > 2:
        axes = [*axes[1:-1], axes[0], axes[-1]]
    if trans:
        axes = [*axes[:-2], axes[-1], axes[-2]]
    return transpose(view, axes)


def _axes(view: View, axes: Sequence[tuple[int, int]]) -> View:
    return replace(view, shape=tuple(extent for extent, _ in axes), strides=tuple(stride for _, stride in axes))
