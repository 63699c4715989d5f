"""A graph traced through the algebra of views: every layout operation as a strided view, or a copy with its bytes.

A view here says that no copy is needed. A kernel may make one all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from qbpass.admission.strides.elements import Elements, Ids, UntracedError
from qbpass.admission.strides.operands import Memory
from qbpass.admission.strides.view import Allocation, View


@dataclass(frozen=True, eq=False)
class Held:
    """A traced tensor: a view, and the element number of every element of its allocation (0 where none is known)."""

    view: View
    contents: Ids
    roots: frozenset[str]

    def ids(self) -> Ids:
        return self.contents[self.view.addresses() // self.view.elem_size]


@dataclass(frozen=True)
class Operation:
    """What one operation, or one operand of a product, is in memory.

    form: view (nothing is moved), copy (`nbytes` are written to new memory) or write (`nbytes` into memory that is
    there). roots: the site's operands whose elements these are; none for scores, weights and outputs.
    """

    operator: str
    tensor: str
    form: Literal["view", "copy", "write"]
    view: View
    nbytes: int
    roots: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "operator": self.operator,
            "tensor": self.tensor,
            "form": self.form,
            "bytes": self.nbytes,
            "of": list(self.roots),
            "memory": self.view.allocation.name,
            "shape": list(self.view.shape),
            "strides": list(self.view.strides),
            "offset": self.view.offset,
            "shared_axes": list(self.view.shared),
        }


class AlgebraTrace:
    """One call of a graph. `values` holds every tensor that is not traced: sizes, masks of numbers, constants."""

    def __init__(
        self, leaves: Mapping[str, Memory], values: Mapping[str, np.ndarray[Any, Any]], elem_size: int
    ) -> None:
        self.values, self.elem_size = values, elem_size
        self.elements = Elements()
        self.operations: list[Operation] = []
        self.held: dict[str, Held] = {name: self._leaf(memory) for name, memory in leaves.items()}

    def _leaf(self, memory: Memory) -> Held:
        ids = memory.elements_in(self.elements)
        contents = np.zeros(memory.elements, np.int64)
        contents[: ids.size] = ids.reshape(-1)
        allocation = Allocation(memory.allocation, memory.elements * self.elem_size, self.elem_size)
        whole = View.contiguous(memory.allocation, ids.shape, self.elem_size)
        view = View(whole.shape, whole.strides, 0, self.elem_size, allocation)
        return Held(view, contents, frozenset({memory.root}))

    def value(self, tensor: str) -> np.ndarray[Any, Any]:
        """A size or constant. Raises UntracedError where the tensor is neither."""
        if tensor not in self.values:
            raise UntracedError(f"needs the value of {tensor!r}, which is traced")
        return self.values[tensor]

    def fresh(self, tensor: str, ids: Ids, roots: frozenset[str]) -> Held:
        """A result in memory of its own."""
        view = View.contiguous(tensor, ids.shape, self.elem_size, self.elem_size)
        return Held(view, ids.reshape(-1), roots)

    def viewed(self, operator: str, tensor: str, source: Held, view: View) -> Held:
        self.operations.append(Operation(operator, tensor, "view", view, 0, tuple(sorted(source.roots))))
        return Held(view, source.contents, source.roots)

    def copied(self, operator: str, tensor: str, ids: Ids, roots: frozenset[str]) -> Held:
        held = self.fresh(tensor, ids, roots)
        self.operations.append(Operation(operator, tensor, "copy", held.view, held.view.nbytes, tuple(sorted(roots))))
        return held

    def written(self, operator: str, tensor: str, places: View, roots: frozenset[str]) -> None:
        self.operations.append(Operation(operator, tensor, "write", places, places.nbytes, tuple(sorted(roots))))

    def operand(self, operator: str, tensor: str, source: Held, view: View) -> Ids:
        """An operand as its operation walks over it, axes that are shared with stride zero."""
        return self.viewed(operator, tensor, source, view).ids()
