"""A thin hand on onnx-graphsurgeon: new nodes get unique names, constants are shared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs


class NodeBuilder:
    """Collects nodes for one graph (or one branch of a guard). `scope` prefixes every name it gives."""

    def __init__(self, scope: str, constants: dict[Any, gs.Constant] | None = None):
        self.scope = scope
        self.nodes: list[gs.Node] = []
        self.constants: dict[Any, gs.Constant] = {} if constants is None else constants

    def node(
        self, op: str, inputs: Iterable[Any], name: str, *, domain: str = "", dtype: Any = None, **attrs: Any
    ) -> Any:
        """Add a one-output node and return its output tensor."""
        output = gs.Variable(f"{self.scope}/{name}", dtype=dtype)
        node = gs.Node(
            op, f"{self.scope}/{name}", attrs=attrs, inputs=list(inputs), outputs=[output], domain=domain or None
        )
        self.nodes.append(node)
        return output

    def ints(self, *values: int) -> gs.Constant:
        """A shared 1-D int64 constant."""
        return self._constant(("i", values), np.array(values, dtype=np.int64))

    def int32s(self, *values: int) -> gs.Constant:
        """A shared 1-D int32 constant."""
        return self._constant(("i32", values), np.array(values, dtype=np.int32))

    def scalar(self, value: int) -> gs.Constant:
        """A shared 0-D int64 constant."""
        return self._constant(("s", value), np.array(value, dtype=np.int64))

    def bools(self, values: Iterable[bool]) -> gs.Constant:
        entries = tuple(values)
        return self._constant(("b", entries), np.array(entries, dtype=np.bool_))

    def _constant(self, key: Any, value: np.ndarray) -> gs.Constant:
        if key not in self.constants:
            self.constants[key] = gs.Constant(f"qbpass/const/{len(self.constants)}", value)
        return self.constants[key]

    def reshape(self, data: Any, shape: Any, name: str) -> Any:
        return self.node("Reshape", [data, shape], name, dtype=data.dtype)

    def replay(self, nodes: Iterable[gs.Node], tensors: dict[str, Any]) -> None:
        """Clone `nodes` in order, reading `tensors` (by the original tensor's name) where it has an entry; add their
        outputs to it.
        """
        for original in nodes:
            outputs = []
            for output in original.outputs:
                if output.is_empty():  # an optional result that nobody wants
                    outputs.append(gs.Variable.empty())
                    continue
                copy = gs.Variable(f"{self.scope}/{output.name}", dtype=output.dtype)
                tensors[output.name] = copy
                outputs.append(copy)
            inputs = [tensors.get(tensor.name, tensor) for tensor in original.inputs]
            self.nodes.append(
                gs.Node(
                    original.op,
                    f"{self.scope}/{original.outputs[0].name}",  # nodes need no names; those they have may repeat
                    attrs=dict(original.attrs),
                    inputs=inputs,
                    outputs=outputs,
                    domain=original.domain,
                )
            )
