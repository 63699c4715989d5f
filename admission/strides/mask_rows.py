"""What a mask hides: each row of a block must be given the mask it would be given alone, and see no key behind its own.

A layout may end a row's values at the row's own last key (PQ does), and serial decoding has no keys behind it. Both are
the same attention only if the mask hides those keys, and if its other columns depend on nothing but the row's position
and the tokens before it. So the mask's own nodes are run on blocks and on the single calls of their rows, with all
tokens there and with single tokens padded away, and compared.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qbpass.admission.calls.call import Call
from qbpass.admission.calls.trace import CallTrace
from qbpass.admission.mask_flow import LARGE
from qbpass.admission.report import Diagnostic
from qbpass.admission.strides.findings import Place
from qbpass.models.interface import Interface

Row = np.ndarray


class MaskRows:
    """One mask of a decoder, run by itself for calls of any size."""

    def __init__(self, model: onnx.ModelProto, interface: Interface, mask: str) -> None:
        self.interface, self.mask = interface, mask
        self._model = _upstream(model, mask)
        self._values: dict[tuple[Call, int | None], np.ndarray | None] = {}

    def value(self, call: Call, padded: int | None = None) -> np.ndarray | None:
        """The mask of a call, the token at column `padded` taken away; None where it can't be worked out."""
        key = (call, padded)
        if key not in self._values:
            self._values[key] = self._run(call, padded)
        return self._values[key]

    def shape(self, call: Call) -> tuple[int, ...] | None:
        value = self.value(call)
        return None if value is None else value.shape

    def _run(self, call: Call, padded: int | None) -> np.ndarray | None:
        model = self._model
        if padded is not None:
            if self.interface.attention_mask is None:
                return self.value(call)
            model = _with_padding(model, self.interface.attention_mask, call, padded)
        return CallTrace(model, self.interface, call).value(self.mask)

    def problems(self, place: Place, *, hidden_where: bool = False) -> Iterator[Diagnostic]:
        """The first problem of a call. hidden_where: what a boolean mask holds where a key is hidden."""
        call = place.call
        for padded in (None, *sorted({0, call.past - 1} if call.past else ())):
            block = self._rows(call, padded)
            for row in range(call.queries):
                alone = self._rows(Call(1, call.past + row), padded)
                problem = self._row_problem(place, block, alone, row, padded, hidden_where)
                if problem is not None:
                    yield problem
                    return

    def _row_problem(
        self,
        place: Place,
        block: Row | None,
        alone: Row | None,
        row: int,
        padded: int | None,
        hidden_where: bool,
    ) -> Diagnostic | None:
        if block is None or alone is None:
            return place.problem("MASK_UNKNOWN", f"the values of {self.mask!r} can't be worked out", mask=self.mask)
        own = place.call.past + row + 1
        where = {"mask": self.mask, "row": row, "padded": padded}
        ahead = _seen(block[row, own:], hidden_where)
        if ahead.size:
            column = own + int(ahead[0])
            return place.problem(
                "MASK_AHEAD", f"row {row} at position {own - 1} may see key {column}", column=column, **where
            )
        # By value: where some exports give 0 in a block and -0 alone, a score is at most another zero to the softmax.
        differs = block[row, :own] != alone[0]
        if not differs.any():
            return None
        column = int(np.flatnonzero(differs)[0])
        seen = {"column": column, "in_block": str(block[row, column]), "alone": str(alone[0, column])}
        message = f"row {row} at position {own - 1} is given another mask than alone, at key {column}"
        return place.problem("MASK_NOT_SERIAL", message, **where, **seen)

    def _rows(self, call: Call, padded: int | None) -> np.ndarray | None:
        """(q, n), or None where the mask has no such form."""
        value = self.value(call, padded if padded is not None and padded < call.extent else None)
        if value is None:
            return None
        try:
            return np.ascontiguousarray(np.broadcast_to(value, (1, 1, call.queries, call.extent))[0, 0])
        except ValueError:
            return None


def _seen(columns: np.ndarray, hidden_where: bool) -> np.ndarray:
    """Which of the columns are not hidden."""
    hidden = columns == hidden_where if columns.dtype == np.bool_ else columns.astype(np.float64) <= LARGE
    return np.flatnonzero(~hidden)


def _upstream(model: onnx.ModelProto, tensor: str) -> onnx.ModelProto:
    """Everything that `tensor` is computed from, with the graph's own inputs."""
    nodes, wanted = [], {tensor}
    for node in reversed(model.graph.node):
        if any(name in wanted for name in node.output):
            nodes.append(node)
            wanted.update(name for name in node.input if name)
    graph = helper.make_graph(
        nodes[::-1],
        "mask",
        list(model.graph.input),
        [helper.make_empty_tensor_value_info(tensor)],
        [constant for constant in model.graph.initializer if constant.name in wanted],
    )
    return helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=model.ir_version)


def _with_padding(model: onnx.ModelProto, attention_mask: str, call: Call, column: int) -> onnx.ModelProto:
    """The attention mask as a constant with one column taken away."""
    declared = next(entry for entry in model.graph.input if entry.name == attention_mask)
    dtype = helper.tensor_dtype_to_np_dtype(declared.type.tensor_type.elem_type)
    values = np.ones((1, call.extent), dtype)
    values[0, column] = 0
    padded = onnx.ModelProto()
    padded.CopyFrom(model)
    del padded.graph.input[:]
    padded.graph.input.extend(entry for entry in model.graph.input if entry.name != attention_mask)
    padded.graph.initializer.append(numpy_helper.from_array(values, attention_mask))
    return padded
