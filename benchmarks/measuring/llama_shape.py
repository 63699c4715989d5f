"""A Llama-shaped decoder as torch's exporter writes it with eager attention, its weights named and nowhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ABSENT = "absent.data"  # the external file that every weight names; it need not exist


@dataclass(frozen=True)
class LlamaShape:
    """Defaults: Llama-3.1-8B."""

    layers: int = 32
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    intermediate: int = 14336
    vocabulary: int = 128256


def llama_graph(shape: LlamaShape) -> onnx.ModelProto:
    """The decoder: input_ids (1, q), attention_mask (1, n), position_ids (1, q), one past key and value a layer."""
    return _Writer(shape).model()


class _Writer:
    def __init__(self, shape: LlamaShape) -> None:
        self.shape = shape
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.offset = 0

    def node(self, op: str, *reads: str, **attributes: Any) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(reads), [name], **attributes))
        return name

    def weight(self, *dims: int) -> str:
        """A float32 tensor that lies in ABSENT."""
        size = 4 * int(np.prod(dims))
        tensor = TensorProto(name=f"w{len(self.weights)}", data_type=TensorProto.FLOAT, dims=dims)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", ABSENT), ("offset", self.offset), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        self.offset += size
        self.weights.append(tensor)
        return str(tensor.name)

    def constant(self, value: Any, dtype: str = "int64") -> str:
        tensor = numpy_helper.from_array(np.asarray(value, dtype), f"c{len(self.weights)}")
        self.weights.append(tensor)
        return str(tensor.name)

    def model(self) -> onnx.ModelProto:
        shape = self.shape
        self._declare("input_ids", TensorProto.INT64, 1, "queries")
        self._declare("attention_mask", TensorProto.INT64, 1, "total")
        self._declare("position_ids", TensorProto.INT64, 1, "queries")
        hidden = self.node("Gather", self.weight(shape.vocabulary, shape.hidden), "input_ids")
        mask, angles = self._mask(), self._angles()
        for layer in range(shape.layers):
            hidden = self._layer(layer, hidden, mask, angles)
        self.nodes.append(
            helper.make_node("MatMul", [self._norm(hidden), self.weight(shape.hidden, shape.vocabulary)], ["logits"])
        )
        self.outputs.insert(0, helper.make_tensor_value_info("logits", 1, [1, "queries", shape.vocabulary]))
        graph = helper.make_graph(self.nodes, "llama", self.inputs, self.outputs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)

    def _declare(self, name: str, kind: int, *dims: int | str, output: bool = False) -> str:
        (self.outputs if output else self.inputs).append(helper.make_tensor_value_info(name, kind, list(dims)))
        return name

    def _mask(self) -> str:
        """(1, 1, q, n): 0 up to a query's own position, the lowest float behind."""
        keys = self.node("Squeeze", self.node("Shape", "attention_mask", start=1, end=2))
        rows = self.node("Unsqueeze", "position_ids", self.constant([1, 3]))
        columns = self.node("Range", self.constant(0), keys, self.constant(1))
        allowed = self.node("LessOrEqual", columns, rows)
        there = self.node("Unsqueeze", self.node("Cast", "attention_mask", to=TensorProto.BOOL), self.constant([1, 2]))
        both = self.node("And", allowed, there)
        lowest = float(np.finfo(np.float32).min)
        return self.node("Where", both, self.constant(0, "float32"), self.constant(lowest, "float32"))

    def _angles(self) -> tuple[str, str]:
        """cos and sin (1, 1, q, d)."""
        half = self.shape.head_dim // 2
        positions = self.node(
            "Cast", self.node("Unsqueeze", "position_ids", self.constant([1, 3])), to=TensorProto.FLOAT
        )
        frequencies = self.constant(500000.0 ** -(np.arange(half) / half), "float32")
        angle = self.node("Mul", positions, frequencies)
        both = self.node("Concat", angle, angle, axis=-1)
        return self.node("Cos", both), self.node("Sin", both)

    def _norm(self, hidden: str) -> str:
        square = self.node("Pow", hidden, self.constant(2, "float32"))
        mean = self.node("ReduceMean", square, self.constant([-1]), keepdims=1)
        scale = self.node("Reciprocal", self.node("Sqrt", self.node("Add", mean, self.constant(1e-5, "float32"))))
        return self.node("Mul", self.node("Mul", hidden, scale), self.weight(self.shape.hidden))

    def _layer(self, layer: int, hidden: str, mask: str, angles: tuple[str, str]) -> str:
        shape = self.shape
        normed = self._norm(hidden)
        q = self._rotated(self._heads(normed, shape.heads), angles)
        k = self._cached(layer, "key", self._rotated(self._heads(normed, shape.kv_heads), angles))
        v = self._cached(layer, "value", self._heads(normed, shape.kv_heads))
        keys, values = self._repeated(k), self._repeated(v)
        scores = self.node("MatMul", q, self.node("Transpose", keys, perm=[0, 1, 3, 2]))
        scaled = self.node("Mul", scores, self.constant(shape.head_dim**-0.5, "float32"))
        probabilities = self.node("Softmax", self.node("Add", scaled, mask), axis=-1)
        mixed = self.node("Transpose", self.node("MatMul", probabilities, values), perm=[0, 2, 1, 3])
        width = shape.heads * shape.head_dim
        flat = self.node("Reshape", mixed, self.constant([1, -1, width]))
        hidden = self.node("Add", hidden, self.node("MatMul", flat, self.weight(width, shape.hidden)))
        return self.node("Add", hidden, self._mlp(self._norm(hidden)))

    def _mlp(self, normed: str) -> str:
        shape = self.shape
        gate = self.node("MatMul", normed, self.weight(shape.hidden, shape.intermediate))
        active = self.node("Mul", gate, self.node("Sigmoid", gate))
        up = self.node("MatMul", normed, self.weight(shape.hidden, shape.intermediate))
        return self.node("MatMul", self.node("Mul", active, up), self.weight(shape.intermediate, shape.hidden))

    def _heads(self, normed: str, heads: int) -> str:
        flat = self.node("MatMul", normed, self.weight(self.shape.hidden, heads * self.shape.head_dim))
        split = self.node("Reshape", flat, self.constant([1, -1, heads, self.shape.head_dim]))
        return self.node("Transpose", split, perm=[0, 2, 1, 3])

    def _rotated(self, rows: str, angles: tuple[str, str]) -> str:
        half, last = self.shape.head_dim // 2, np.iinfo(np.int64).max
        left, right = (
            self.node("Slice", rows, self.constant([start]), self.constant([end]), self.constant([3]))
            for start, end in ((0, half), (half, last))
        )
        turned = self.node("Concat", self.node("Neg", right), left, axis=-1)
        return self.node("Add", self.node("Mul", rows, angles[0]), self.node("Mul", turned, angles[1]))

    def _cached(self, layer: int, part: str, rows: str) -> str:
        dims = (self.shape.kv_heads, self.shape.head_dim)
        past = self._declare(f"past.{layer}.{part}", TensorProto.FLOAT, 1, dims[0], "past", dims[1])
        present = self._declare(f"present.{layer}.{part}", TensorProto.FLOAT, 1, dims[0], "total", dims[1], output=True)
        self.nodes.append(helper.make_node("Concat", [past, rows], [present], axis=2))
        return present

    def _repeated(self, present: str) -> str:
        shape = self.shape
        group = shape.heads // shape.kv_heads
        wide = self.node("Unsqueeze", present, self.constant([2]))
        copies = self.node("Expand", wide, self.constant([1, 1, group, 1, 1]))
        return self.node("Reshape", copies, self.constant([1, shape.heads, -1, shape.head_dim]))
