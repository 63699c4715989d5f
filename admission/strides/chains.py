"""Chains of operations on single elements, kept by number so that an array of elements has an array of chains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qbpass.admission.strides.elements import Ids, Step

#: For each of some elements the number of its label, and the labels.
Labels = tuple[Ids, Sequence[str]]


class Chains:
    """Chain 0 is empty."""

    def __init__(self) -> None:
        self._chains: list[tuple[str, ...]] = [()]

    def behind(self, chain: Ids, labels: Labels) -> Ids:
        """Each chain with its element's label in front of it: walks go from results to operands."""
        codes, names = labels
        pairs, inverse = np.unique(chain * len(names) + codes, return_inverse=True)
        numbers = [self._number((names[pair % len(names)], *self._chains[pair // len(names)])) for pair in pairs]
        found: Ids = np.array(numbers, np.int64)[inverse.reshape(-1)]
        return found

    def labels(self, chain: Ids, label: str) -> Labels:
        """`label`, with what each element's chain holds: for an operand that had operations of its own."""
        numbers, codes = np.unique(chain, return_inverse=True)
        names = [f"{label} of {', '.join(self._chains[n])}" if self._chains[n] else label for n in numbers]
        return codes.reshape(-1), names

    def text(self, chain: Ids) -> tuple[str, ...]:
        """Every chain that occurs, first operation first."""
        numbers = np.flatnonzero(np.bincount(chain))
        return tuple(sorted(", ".join(self._chains[number]) for number in numbers)) or ("",)

    def _number(self, chain: tuple[str, ...]) -> int:
        if chain not in self._chains:
            self._chains.append(chain)
        return self._chains.index(chain)


def one_label(label: str, count: int) -> Labels:
    return np.zeros(count, np.int64), [label]


def labels_of(step: Step, within: Ids) -> Labels:
    """A step's label, with the other operand's number where it has one."""
    if step.values is None:
        return one_label(step.label, within.size)
    return number_labels(step.label, step.values[within])


def number_labels(label: str, values: np.ndarray) -> Labels:
    """`label(value)` for each; values are told apart by their bits."""
    kept, codes = np.unique(np.ascontiguousarray(values).view(f"V{values.dtype.itemsize}"), return_inverse=True)
    names = [f"{label}({value!r})" for value in kept.view(values.dtype).tolist()]
    return codes.reshape(-1), names
