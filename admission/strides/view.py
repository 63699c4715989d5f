"""A tensor as a strided view of memory: shape, strides and offset over one allocation, in bytes as numpy has them.

Source: Phase-Scoped Query Layouts, section 3.1 (the query view keeps the original stride as its new axis's stride) and
3.2 (addresses, mask and head semantics).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Addresses = np.ndarray[Any, np.dtype[np.int64]]

#: Elements of the largest view whose addresses are listed where no rule shows that they differ.
ENUMERATION_LIMIT = 1 << 22


@dataclass(frozen=True)
class Allocation:
    """Contiguous memory. alignment: what the address of its first byte is a multiple of."""

    name: str
    nbytes: int
    alignment: int = 1


@dataclass(frozen=True)
class View:
    """Element (i, j, ..) lies at byte offset + i * strides[0] + j * strides[1] + .. of the allocation."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes
    offset: int  # bytes
    elem_size: int  # bytes
    allocation: Allocation

    @classmethod
    def contiguous(cls, name: str, shape: tuple[int, ...], elem_size: int, alignment: int = 1) -> View:
        """A row-major tensor that fills an allocation of its own."""
        allocation = Allocation(name, math.prod(shape) * elem_size, alignment)
        return cls(shape, row_major(shape, elem_size), 0, elem_size, allocation)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a copy."""
        return self.size * self.elem_size

    @property
    def walked(self) -> tuple[int, ...]:
        """The axes along which there is a second element: no other stride is ever used."""
        return tuple(axis for axis, extent in enumerate(self.shape) if extent > 1)

    @property
    def shared(self) -> tuple[int, ...]:
        """Axes declared to share: every index along them is the same memory (stride zero)."""
        return tuple(axis for axis in self.walked if self.strides[axis] == 0)

    @property
    def is_contiguous(self) -> bool:
        """Row-major without gaps; where the view starts does not matter."""
        wanted = row_major(self.shape, self.elem_size)
        return self.size == 0 or all(self.strides[axis] == wanted[axis] for axis in self.walked)

    @property
    def bounds(self) -> tuple[int, int]:
        """The first byte that is read, and the one behind the last; both the offset where the view is empty."""
        if self.size == 0:
            return self.offset, self.offset
        reach = [(self.shape[axis] - 1) * self.strides[axis] for axis in self.walked]
        lowest = self.offset + sum(step for step in reach if step < 0)
        return lowest, self.offset + sum(step for step in reach if step > 0) + self.elem_size

    @property
    def within_allocation(self) -> bool:
        first, end = self.bounds
        return self.size == 0 or (first >= 0 and end <= self.allocation.nbytes)

    @property
    def alignment(self) -> int:
        """The largest number of which every element's address is a multiple, by the allocation's own alignment."""
        return math.gcd(self.allocation.alignment, self.offset, *(self.strides[axis] for axis in self.walked))

    @property
    def row_alignment(self) -> int:
        """The same for the first elements of the runs along a last axis without gaps: what a vector load meets."""
        runs = self.walked
        if runs and runs[-1] == len(self.shape) - 1 and self.strides[runs[-1]] == self.elem_size:
            runs = runs[:-1]
        return math.gcd(self.allocation.alignment, self.offset, *(self.strides[axis] for axis in runs))

    @property
    def elements_aligned(self) -> bool:
        """Offset and strides are whole elements, so no element straddles another's bytes."""
        return self.offset % self.elem_size == 0 and all(self.strides[a] % self.elem_size == 0 for a in self.walked)

    @property
    def overlaps(self) -> bool:
        """Whether two different indices, apart from declared sharing, touch the same byte."""
        steps = sorted((abs(self.strides[axis]), self.shape[axis]) for axis in self.walked if self.strides[axis])
        reach = self.elem_size
        for stride, extent in steps:
            if stride < reach:
                return self._overlaps_somewhere()
            reach += stride * (extent - 1)
        return False

    def _overlaps_somewhere(self) -> bool:
        """The nested-strides rule shows nothing here, so every address is looked at. Raises ValueError if too many."""
        own = View(*without_axes(self.shape, self.strides, self.shared), self.offset, self.elem_size, self.allocation)
        if own.size > ENUMERATION_LIMIT:
            raise ValueError(f"a view of {own.size:,} elements with interleaved strides is too large to check")
        addresses = np.sort(own.addresses(), axis=None)
        return bool(np.any(np.diff(addresses) < self.elem_size))

    def addresses(self) -> Addresses:
        """The byte address of every element, in the view's own shape."""
        found: Addresses = np.full(self.shape, self.offset, np.int64)
        for axis, (extent, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            steps = np.arange(extent, dtype=np.int64) * stride
            found = found + steps.reshape((extent, *(1,) * (len(self.shape) - axis - 1)))
        return found


def row_major(shape: tuple[int, ...], elem_size: int) -> tuple[int, ...]:
    """Byte strides of a contiguous tensor; an empty axis counts as one element, as numpy has it."""
    strides = [elem_size] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)


def without_axes(
    shape: tuple[int, ...], strides: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides without some axes."""
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    return tuple(shape[axis] for axis in kept), tuple(strides[axis] for axis in kept)
