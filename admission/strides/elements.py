"""What each number computed in a traced call is: an element of an operand, or an operation on other elements.

A tracer hands out a number for every element of every tensor of a call. Layout operations move these numbers about;
arithmetic makes new ones and records here what it read. So every address that takes part in a result can be read off
the result. Two tracers of one graph that agree on its order give the same numbers to the same elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Ids = np.ndarray[Any, np.dtype[np.int64]]
Values = np.ndarray[Any, Any]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


class UntracedError(Exception):
    """Something whose elements can't be followed; `str(error)` says what, in a clause without a subject's name."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """Elements `numbers` of one of the site's operands (required.py says how they are numbered)."""

    root: str
    numbers: Ids


@dataclass(frozen=True, eq=False)
class Number:
    """Elements that no operand takes part in: constants and sizes."""

    values: Values


@dataclass(frozen=True, eq=False)
class Step:
    """An operation on one element each; `values` is the other operand's number for each, where there is one."""

    label: str
    operands: Ids
    values: Values | None = None


@dataclass(frozen=True, eq=False)
class Sum:
    """left[i] + right[i]."""

    left: Ids
    right: Ids


@dataclass(frozen=True, eq=False)
class Choice:
    """yes[i] where condition[i], else no[i]."""

    condition: Ids
    yes: Ids
    no: Ids


@dataclass(frozen=True, eq=False)
class Product:
    """Element (b, m, n) is alpha * the sum over k, in order, of rows[b, m, k] * columns[b, k, n]."""

    rows_BMK: Ids
    columns_BKN: Ids
    alpha: float

    def operands(self, within: Ids) -> tuple[Ids, Ids]:
        """(.., K) left and right operand of each of the elements at places `within`."""
        columns = self.columns_BKN.shape[2]
        batch, place = np.divmod(within, max(self.rows_BMK.shape[1] * columns, 1))
        row, column = np.divmod(place, max(columns, 1))
        return self.rows_BMK[batch, row], np.swapaxes(self.columns_BKN, 1, 2)[batch, column]


@dataclass(frozen=True, eq=False)
class Softmax:
    """Element (r, c) is the softmax of rows[r] at c."""

    rows_RN: Ids


Record = Leaf | Number | Step | Sum | Choice | Product | Softmax

#: Elements of one trace, and of one tensor: a graph from a stranger may ask for any number.
ELEMENT_LIMIT = 1 << 24


class Elements:
    """Every element of one traced call. Numbers start at 1, in the order in which they were made."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._ends: list[int] = [1]

    def leaves(self, root: str, numbers: Ids) -> Ids:
        return self._add(Leaf(root, numbers.reshape(-1)), numbers.shape)

    def numbers(self, values: Values) -> Ids:
        return self._add(Number(values.reshape(-1)), values.shape)

    def step(self, label: str, operands: Ids, values: Values | None = None) -> Ids:
        """`values` broadcasts against the operands."""
        if values is not None:
            operands, values = np.broadcast_arrays(operands, values)
            values = values.reshape(-1)
        return self._add(Step(label, operands.reshape(-1), values), operands.shape)

    def sum(self, left: Ids, right: Ids) -> Ids:
        left, right = np.broadcast_arrays(left, right)
        return self._add(Sum(left.reshape(-1), right.reshape(-1)), left.shape)

    def choice(self, condition: Ids, yes: Ids, no: Ids) -> Ids:
        condition, yes, no = np.broadcast_arrays(condition, yes, no)
        return self._add(Choice(condition.reshape(-1), yes.reshape(-1), no.reshape(-1)), condition.shape)

    def product(self, rows: Ids, columns: Ids, alpha: float) -> Ids:
        """Operands (.., M, K) and (.., K, N) with the same batch axes."""
        *batch, height, depth = rows.shape
        width, count = columns.shape[-1], math.prod(batch)
        record = Product(rows.reshape(count, height, depth), columns.reshape(count, depth, width), alpha)
        return self._add(record, (*batch, height, width))

    def softmax(self, scores: Ids) -> Ids:
        """Over the last axis."""
        rows = math.prod(scores.shape[:-1])
        return self._add(Softmax(scores.reshape(rows, scores.shape[-1])), scores.shape)

    def _add(self, record: Record, shape: tuple[int, ...]) -> Ids:
        first, count = self._ends[-1], math.prod(shape)
        if first + count > ELEMENT_LIMIT:
            raise UntracedError(f"makes more than {ELEMENT_LIMIT:,} elements in a tiny call")
        self._records.append(record)
        self._ends.append(first + count)
        self.__dict__.pop("_bounds", None)
        return np.arange(first, first + count, dtype=np.int64).reshape(shape)

    @cached_property
    def _bounds(self) -> Ids:
        return np.array(self._ends, np.int64)

    def same_as(self, other: Elements) -> bool:
        """Whether both traces made the same elements from the same ones, by the same operations."""
        pairs = zip(self._records, other._records, strict=False)
        return self._ends == other._ends and all(type(a) is type(b) and _same(vars(a), vars(b)) for a, b in pairs)

    def grouped(self, ids: Ids) -> list[tuple[Record, Ids, Ids]]:
        """(record, places in `ids`, places in the record) of flat `ids`, one entry for each record they come from."""
        if not ids.size:
            return []
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 1 or highest >= self._ends[-1]:
            raise UntracedError("holds numbers that are no elements of this call")
        first, last = np.searchsorted(self._bounds, (lowest, highest), side="right") - 1
        if first == last:
            return [(self._records[first], np.arange(ids.size), ids - self._ends[first])]
        owner = np.searchsorted(self._bounds, ids, side="right") - 1
        found = []
        for index in np.flatnonzero(np.bincount(owner)):
            places = np.flatnonzero(owner == index)
            found.append((self._records[index], places, ids[places] - self._ends[index]))
        return found


def _same(fields: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Fields of two records of one type, arrays by their bytes."""
    return all(_plain(value) == _plain(others[name]) for name, value in fields.items())


def _plain(value: Any) -> Any:
    return (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value
