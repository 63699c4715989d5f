"""Walks from an element back through the operations on single elements on top of it."""

from __future__ import annotations

import numpy as np

from qbpass.admission.strides.chains import Chains, Labels, labels_of, number_labels
from qbpass.admission.strides.elements import (
    Choice,
    Elements,
    Ids,
    Leaf,
    Number,
    Record,
    Step,
    UntracedError,
    Values,
)


class Walk:
    """Walks over the elements of one trace. `chains` keeps what they passed."""

    def __init__(self, elements: Elements) -> None:
        self.elements, self.chains = elements, Chains()

    def peel(self, ids: Ids) -> tuple[Ids, Ids]:
        """`ids` without the operations on single elements on top of them, and the chains of those."""
        found, chain = ids.reshape(-1).copy(), np.zeros(ids.size, np.int64)
        pending = np.arange(found.size)
        while pending.size:
            again = []
            for record, at, within in self.elements.grouped(found[pending]):
                here = pending[at]
                guarded = self.guard(record, within) if isinstance(record, Choice) else None
                if isinstance(record, Step):
                    found[here], labels = record.operands[within], labels_of(record, within)
                elif guarded is not None:
                    found[here], labels = guarded[0], guarded[2]
                else:
                    continue
                chain[here] = self.chains.behind(chain[here], labels)
                again.append(here)
            pending = np.concatenate(again) if again else np.array([], np.int64)
        return found.reshape(ids.shape), chain

    def operand(self, ids: Ids, root: str) -> tuple[Ids, tuple[str, ...]]:
        found, chain = self.peel(ids)
        return read_leaves(self.elements, found, root), self.chains.text(chain)

    def guard(self, record: Choice, within: Ids) -> tuple[Ids, None, Labels] | None:
        """Where(IsNaN(x), number, x) leaves x as it is but where it is no number; what is tested may be x cast."""
        tested, cast = record.condition[within], set()
        for test, places, at in self.elements.grouped(tested):
            if not isinstance(test, Step) or test.label != "IsNaN":
                return None
            casts = self._casts_between(record.no[within][places], test.operands[at])
            if casts is None:
                return None
            cast.add("".join(f" of {label}" for label in casts))
        values = self.values(record.yes[within])
        if values is None or len(cast) != 1:
            return None
        return record.no[within], None, number_labels(f"where(NaN{cast.pop()})", values)

    def _casts_between(self, source: Ids, result: Ids) -> list[str] | None:
        """The casts that make `result` of `source`, the same for every element; None where something else does."""
        casts: list[str] = []
        while not np.array_equal(source, result):
            groups = self.elements.grouped(result)
            labels = {record.label if isinstance(record, Step) else "" for record, _, _ in groups}
            if len(labels) != 1 or not (label := labels.pop()).startswith("Cast"):
                return None
            casts.append(label)
            under = np.empty_like(result)
            for record, places, within in groups:
                under[places] = record.operands[within] if isinstance(record, Step) else 0
            result = under
        return casts

    def values(self, ids: Ids) -> Values | None:
        """The numbers that `ids` are; None where one is computed."""
        found = np.empty(ids.size)
        for record, places, within in self.elements.grouped(ids):
            if not isinstance(record, Number):
                return None
            found[places] = record.values[within]
        return found


def read_leaves(elements: Elements, ids: Ids, root: str) -> Ids:
    """The numbers of `ids`, all of which must be elements of `root`. Raises UntracedError."""
    numbers = np.empty(ids.size, np.int64)
    for record, places, within in elements.grouped(ids.reshape(-1)):
        if not isinstance(record, Leaf) or record.root != root:
            raise UntracedError(f"reads {described(record)} where {root} is read")
        numbers[places] = record.numbers[within]
    return numbers.reshape(ids.shape)


def described(record: Record) -> str:
    if isinstance(record, Leaf):
        return f"elements of {record.root}"
    if isinstance(record, Step):
        return f"{record.label} results"
    return f"a {type(record).__name__.lower()}"
