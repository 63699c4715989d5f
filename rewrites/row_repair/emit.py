"""Units run apart: rows are split, each slot runs the unit for its rows, and the results are put together again.

How many rows a slot holds is data: in the phases of the layout `rows_per_call` each, none where the call has no more;
in the other phases the first slot holds all rows and runs the operator as exported. Kernels return at once for no rows.
The split sizes add up to the call's rows only where there are enough slots, and a Split whose sizes do not is an error:
a wider call than the graph was made for can't lose rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_graphsurgeon as gs

from qbpass.rewrites.builder import NodeBuilder
from qbpass.rewrites.row_repair.repair import REPAIR_SCOPE, RowRepair


class RowSplitter:
    """Splits tensors into slots. Sizes are computed once a call, and each tensor is split once."""

    def __init__(self, builder: NodeBuilder, max_queries: int, queries: Any, condition: Any = None):
        """queries: 1-element int64, the rows of the call. condition: scalar bool, is the layout active; None: it is."""
        self.builder, self.max_queries, self.queries, self.condition = builder, max_queries, queries, condition
        self._sizes: dict[int, Any] = {}
        self._parts: dict[tuple[str, int, int], list[Any]] = {}

    def parts(self, tensor: Any, axis: int, rows_per_call: int) -> list[Any]:
        """One tensor a slot: together all rows of `tensor` along `axis`, in order."""
        key = (tensor.name, axis, rows_per_call)
        if key not in self._parts:
            sizes = self._sizes_for(rows_per_call)
            name = f"{REPAIR_SCOPE}/split{len(self._parts)}"
            slots = -(-self.max_queries // rows_per_call)
            parts = [gs.Variable(f"{name}/{tensor.name}/{j}", dtype=tensor.dtype) for j in range(slots)]
            split = gs.Node("Split", name, attrs={"axis": axis}, inputs=[tensor, sizes], outputs=parts)
            self.builder.nodes.append(split)
            self._parts[key] = parts
        return self._parts[key]

    def _sizes_for(self, rows_per_call: int) -> Any:
        """(slots,) int64."""
        if rows_per_call not in self._sizes:
            builder, name = self.builder, f"slots{rows_per_call}"
            starts = range(0, self.max_queries, rows_per_call)
            left = builder.node("Sub", [self.queries, builder.ints(*starts)], f"{name}/left", dtype="int64")
            some = builder.node("Max", [left, builder.ints(0)], f"{name}/some", dtype="int64")
            sizes = builder.node("Min", [some, builder.ints(rows_per_call)], f"{name}/apart", dtype="int64")
            if self.condition is not None:
                first = builder.ints(*(int(start == 0) for start in starts))
                together = builder.node("Mul", [self.queries, first], f"{name}/together", dtype="int64")
                sizes = builder.node("Where", [self.condition, sizes, together], f"{name}/sizes", dtype="int64")
            self._sizes[rows_per_call] = sizes
        return self._sizes[rows_per_call]


def emit_repairs(
    builder: NodeBuilder,
    repairs: Sequence[RowRepair],
    max_queries: int,
    producers: Mapping[str, gs.Node],
    tensors: Mapping[str, Any],
    counted: tuple[Any, int],
    condition: Any = None,
) -> None:
    """Every unit of `repairs` in slots. producers: the exported nodes by each of their outputs; they are emptied.

    counted: a tensor with as many entries along that axis as the call has rows. condition: see RowSplitter. Weights are
    read by every slot, never copied.
    """
    if not repairs:
        return
    tensor, axis = counted
    shape = builder.node("Shape", [tensor], "repair/q/shape", dtype="int64")
    queries = builder.node("Slice", [shape, builder.ints(axis), builder.ints(axis + 1)], "repair/q", dtype="int64")
    splitter = RowSplitter(builder, max_queries, queries, condition)
    numbers = iter(range(sum(len(repair.units) for repair in repairs)))
    for repair in repairs:
        for unit in repair.units:
            scope = f"{REPAIR_SCOPE}/{next(numbers)}"
            originals = [producers[name] for name in unit.nodes]
            slots = []
            for j in range(repair.slots(max_queries)):
                slot = NodeBuilder(f"{scope}/slot{j}", constants=builder.constants)
                made = {name: splitter.parts(tensors[name], axis, repair.rows_per_call)[j] for name, axis in unit.rows}
                slot.replay(originals, made)
                builder.nodes.extend(slot.nodes)
                slots.append(made)
            for original in originals:
                original.inputs.clear()
                original.outputs.clear()
            for name, axis in unit.results:
                parts = [made[name] for made in slots]
                builder.nodes.append(gs.Node("Concat", f"{scope}/rows/{name}", {"axis": axis}, parts, [tensors[name]]))
