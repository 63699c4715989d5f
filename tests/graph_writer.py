"""Writes ONNX graphs node by node, for tests: every call adds one node and returns its output's name."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class GraphWriter:
    """A graph in the making. Constants are deduplicated by name; shapes are declared only where a test gives them."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.declared: list[onnx.ValueInfoProto] = []
        self.constants: dict[str, TensorProto] = {}

    def input(self, name: str, elem_type: int, *shape: int | str) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, elem_type, list(shape)))
        return name

    def output(self, name: str, elem_type: int, *shape: int | str) -> str:
        self.outputs.append(helper.make_tensor_value_info(name, elem_type, list(shape)))
        return name

    def constant(self, value: Any, dtype: str = "int64") -> str:
        array = np.asarray(value, dtype=dtype)
        name = f"c{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def node(self, operator: str, inputs: list[str], name: str, domain: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [name], domain=domain, **attributes))
        return name

    def declare(self, name: str, elem_type: int, *shape: int | str) -> str:
        self.declared.append(helper.make_tensor_value_info(name, elem_type, list(shape)))
        return name

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, "g", self.inputs, self.outputs, list(self.constants.values()), value_info=self.declared
        )
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)
