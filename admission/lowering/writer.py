"""Writes the nodes and constants of one lowered graph, every name unique in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

#: What every name that a lowering makes begins with.
PREFIX = "lowered/"


class Writer:
    """Nodes in the order they are written; constants are shared by value."""

    def __init__(self, prefix: str = PREFIX) -> None:
        self.prefix = prefix
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[tuple[str, tuple[int, ...], bytes], onnx.TensorProto] = {}

    def node(
        self, operator: str, inputs: Sequence[str], name: str, *, domain: str = "", outputs: int = 1, **attributes: Any
    ) -> str:
        """Add a node; its first output is called `name`, others `name.1`, `name.2`, .. Returns the first's name."""
        results = [name, *(f"{name}.{number}" for number in range(1, outputs))]
        self.nodes.append(helper.make_node(operator, list(inputs), results, name, domain=domain, **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """A list for a 1-D tensor, a number for a 0-D one."""
        array = np.asarray(value, dtype)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = numpy_helper.from_array(array, f"{self.prefix}constant/{len(self.constants)}")
        return str(self.constants[key].name)
