"""A Llama-shaped decoder as torch's exporter writes it with eager attention, its weights named and nowhere.

Products with weights are float32 `MatMul`s, or com.microsoft `MatMulNBits` of 4 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ABSENT = "absent.data"  # the external file that every weight names; it need not exist
BLOCK = 32  # weights that share a scale


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


def llama_graph(shape: LlamaShape, *, int4: bool = False) -> onnx.ModelProto:
    """The decoder: input_ids (1, q), attention_mask (1, n), position_ids (1, q), one past key and value a layer."""
    return (_Int4Writer if int4 else _Writer)(shape).model()


def weight_bytes(model: onnx.ModelProto) -> int:
    """The size that ABSENT would have."""
    ends = [
        int(entries["offset"]) + int(entries["length"])
        for tensor in model.graph.initializer
        if (entries := {entry.key: entry.value for entry in tensor.external_data})
    ]
    return max(ends)


class _Writer:
    def __init__(self, shape: LlamaShape) -> None:
        self.shape = shape
        self.opsets = [helper.make_opsetid("", 18)]
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.offset = 0

    def node(self, op: str, *reads: str, **attributes: Any) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(reads), [name], **attributes))
        return name

    def weight(self, *dims: int, elem_type: int = TensorProto.FLOAT) -> str:
        """A tensor that lies in ABSENT."""
        size = helper.tensor_dtype_to_np_dtype(elem_type).itemsize * int(np.prod(dims))
        tensor = TensorProto(name=f"w{len(self.weights)}", data_type=elem_type, dims=dims)
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

    def embedded(self, ids: str) -> str:
        """Hidden states (1, q, hidden) of ids (1, q)."""
        return self.node("Gather", self.weight(self.shape.vocabulary, self.shape.hidden), ids)

    def product(self, rows: str, width: int, columns: int) -> str:
        """rows (1, q, width) times weights."""
        return self.node("MatMul", rows, self.weight(width, columns))

    def model(self) -> onnx.ModelProto:
        shape = self.shape
        self._declare("input_ids", TensorProto.INT64, 1, "queries")
        self._declare("attention_mask", TensorProto.INT64, 1, "total")
        self._declare("position_ids", TensorProto.INT64, 1, "queries")
        hidden = self.embedded("input_ids")
        mask, angles = self._mask(), self._angles()
        for layer in range(shape.layers):
            hidden = self._layer(layer, hidden, mask, angles)
        self.product(self._norm(hidden), shape.hidden, shape.vocabulary)
        self.nodes[-1].output[0] = "logits"
        self.outputs.insert(0, helper.make_tensor_value_info("logits", 1, [1, "queries", shape.vocabulary]))
        graph = helper.make_graph(self.nodes, "llama", self.inputs, self.outputs, self.weights)
        return helper.make_model(graph, opset_imports=self.opsets, ir_version=10)

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
        hidden = self.node("Add", hidden, self.product(flat, width, shape.hidden))
        return self.node("Add", hidden, self._mlp(self._norm(hidden)))

    def _mlp(self, normed: str) -> str:
        shape = self.shape
        gate = self.product(normed, shape.hidden, shape.intermediate)
        active = self.node("Mul", gate, self.node("Sigmoid", gate))
        up = self.product(normed, shape.hidden, shape.intermediate)
        return self.product(self.node("Mul", active, up), shape.intermediate, shape.hidden)

    def _heads(self, normed: str, heads: int) -> str:
        flat = self.product(normed, self.shape.hidden, heads * self.shape.head_dim)
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


class _Int4Writer(_Writer):
    """Products as onnxruntime-genai's builder quantizes them: blocks of 32 along the width, activations as int8."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__(shape)
        self.opsets.append(helper.make_opsetid("com.microsoft", 1))

    def embedded(self, ids: str) -> str:
        rows, width = self.shape.vocabulary, self.shape.hidden
        packed = self.weight(rows, width // 2, elem_type=TensorProto.UINT8)
        scales = self.weight(rows, width // BLOCK)
        sizes = {"gather_axis": 0, "quantize_axis": 1, "block_size": BLOCK, "bits": 4}
        return self.node("GatherBlockQuantized", packed, ids, scales, domain="com.microsoft", **sizes)

    def product(self, rows: str, width: int, columns: int) -> str:
        blocks = width // BLOCK
        packed = self.weight(columns, blocks, BLOCK // 2, elem_type=TensorProto.UINT8)
        sizes = {"K": width, "N": columns, "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
        return self.node("MatMulNBits", rows, packed, self.weight(columns * blocks), domain="com.microsoft", **sizes)
