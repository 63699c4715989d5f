"""A site's operands as a traced graph gets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qbpass.admission.strides.elements import Elements, Ids

Through = tuple[str, np.ndarray[Any, Any] | None]


@dataclass(frozen=True, eq=False)
class Memory:
    """An input as it lies in memory: the first elements of an allocation, row-major.

    root, numbers: which of the site's operands its elements are (required.py), NOTHING for memory that holds none;
    allocation: inputs that name the same one are the same memory; elements: how many the allocation holds; through:
    operations (label, number if it takes one) that the elements went through before they were put there, in order.
    """

    root: str
    numbers: Ids
    allocation: str
    elements: int
    through: tuple[Through, ...] = ()

    @classmethod
    def own(cls, name: str, root: str, numbers: Ids) -> Memory:
        """An input that fills memory of its own."""
        return cls(root, numbers, name, numbers.size)

    def elements_in(self, trace: Elements) -> Ids:
        """The numbers that a trace gives to the input's elements."""
        ids = trace.leaves(self.root, self.numbers)
        for label, number in self.through:
            ids = trace.step(label, ids, number)
        return ids
