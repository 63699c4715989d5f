"""What the lowered attentions of a graph share in a call: its lengths, positions, and masks to add to scores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from qbpass.admission.lowering.writer import PREFIX, Writer

AT = f"{PREFIX}call"


class CallTensors:
    """Written once a graph, at the first attention that asks."""

    def __init__(self, w: Writer, input_ids: str, past_key: str | None) -> None:
        """input_ids: (1, q); past_key: a graph input (1, Hkv, past, d), or None where the graph has none."""
        self._w = w
        self._input_ids, self._past_key = input_ids, past_key
        self._made: dict[tuple[str, ...], str] = {}

    def positions(self) -> str:
        """(1, q) int64: past, past + 1, .."""
        return self._once(("positions",), lambda: self._unsqueezed(self._rows(), [0], "positions"))

    def additive(self, mask: str | None, kind: int, *, causal: bool) -> str | None:
        """What is added to the scores for the operator's mask (boolean: True where a key counts), and for its own order
        of rows where it is `causal`. None where nothing is.
        """
        if mask is None and not causal:
            return None
        if kind != TensorProto.BOOL and not causal:
            return mask
        key = ("additive", mask or "", str(causal))
        name = "/".join([AT, "mask", *(["causal"] if causal else []), *([mask] if mask else [])])
        return self._once(key, lambda: self._additive(name, mask, kind, causal=causal))

    def _additive(self, name: str, mask: str | None, kind: int, *, causal: bool) -> str:
        w = self._w
        hidden, seen = w.constant(-np.inf, np.float32), w.constant(0, np.float32)
        if mask is None or kind == TensorProto.BOOL:
            allowed = self._earlier() if causal else str(mask)
            if causal and mask is not None:
                allowed = w.node("And", [self._earlier(), mask], f"{name}/allowed")
            return w.node("Where", [allowed, seen, hidden], name)
        return w.node("Where", [self._earlier(), mask, hidden], name)

    def _earlier(self) -> str:
        """(1, 1, q, n) bool: whether a key is not behind the row."""
        return self._once(("earlier",), self._write_earlier)

    def _write_earlier(self) -> str:
        w = self._w
        lengths = [self._past(), self._queries()]
        total = w.node("Add", lengths, f"{AT}/keys")
        keys = w.node("Range", [w.constant(0), total, w.constant(1)], f"{AT}/key_positions")
        rows = self._unsqueezed(self._rows(), [1], "row_positions")
        return self._unsqueezed(w.node("LessOrEqual", [keys, rows], f"{AT}/ordered"), [0, 1], "earlier")

    def _rows(self) -> str:
        """(q,) int64: the call's positions."""

        def write() -> str:
            w = self._w
            counted = w.node("Range", [w.constant(0), self._queries(), w.constant(1)], f"{AT}/rows_from_0")
            return w.node("Add", [counted, self._past()], f"{AT}/rows")

        return self._once(("rows",), write)

    def _queries(self) -> str:
        return self._once(("queries",), lambda: self._length(self._input_ids, 1, "queries"))

    def _past(self) -> str:
        def write() -> str:
            if self._past_key is None:
                return self._w.constant(0)
            return self._length(self._past_key, 2, "past")

        return self._once(("past",), write)

    def _length(self, tensor: str, axis: int, name: str) -> str:
        """0-D int64."""
        size = self._w.node("Shape", [tensor], f"{AT}/{name}/size", start=axis, end=axis + 1)
        return self._w.node("Squeeze", [size, self._w.constant([0])], f"{AT}/{name}")

    def _unsqueezed(self, tensor: str, axes: list[int], name: str) -> str:
        return self._w.node("Unsqueeze", [tensor, self._w.constant(axes)], f"{AT}/{name}")

    def _once(self, key: tuple[str, ...], write: Callable[[], str]) -> str:
        if key not in self._made:
            self._made[key] = write()
        return self._made[key]
