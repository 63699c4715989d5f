"""Products with constant weights, quantized by ONNX Runtime's own quantizer, one weight after another.

A weight is read, quantized, written and forgotten: a large model needs no more memory than its largest matrix.
Products that read the same rows become one, whose columns are theirs side by side: fewer, larger operators.
Source: com.microsoft.MatMulNBits (docs/ContribOperators.md): B as (N, blocks, bytes), scales as (N, blocks), zero
points as (N, bytes), so columns are appended along the first axis of each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from qbpass.models.external_data import external_entry, set_external_entry
from qbpass.models.weight_sources import WeightSources

MICROSOFT = "com.microsoft"
ACCURACY_LEVEL = 4  # int8 products of int8 rows: the cheapest that the provider has
ALIGNMENT = 4096


@dataclass(frozen=True)
class QuantForm:
    """bits, head_bits: of the weights, and of the language-model head's. head_tokens: so many of the vocabulary's first
    tokens can be proposed; None for all. A tokenizer's merges are numbered by frequency, so the first are the usual.
    """

    bits: int
    head_bits: int
    head_tokens: int | None = None
    block: int = 32

    @property
    def name(self) -> str:
        tokens = "" if self.head_tokens is None else f", first {self.head_tokens} tokens"
        return f"int{self.bits}, head int{self.head_bits}{tokens}"

    def symmetric(self, bits: int) -> bool:
        """Eight bits lose nothing by having their zero in the middle; four do."""
        return bits == 8


def quantize_products(
    model: onnx.ModelProto,
    head: str,
    weights: WeightSources,
    form: QuantForm,
    data: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """In place: MatMul with a constant (K, N) float32 weight becomes MatMulNBits, its weights in the file `data`.

    head: the output of the language-model head's product. Returns how many products were quantized; `progress` is told
    of weights. Raises ModelFileError where a weight can't be read.
    """
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    groups = list(_groups(model, initializers))
    total = sum(len(nodes) for nodes in groups)
    made: dict[str, list[onnx.NodeProto]] = {}
    done = 0
    with data.open("wb") as file, _quiet():
        for nodes in groups:
            is_head = head in nodes[0].output
            bits, columns = (form.head_bits, form.head_tokens) if is_head else (form.bits, None)
            parts = []
            for node in nodes:
                weight = _read(initializers[node.input[1]], weights)
                parts.append(_quantized(weight[:, :columns], bits, form.block, form.symmetric(bits)))
                done += 1
                progress(done, total)
            made[nodes[0].output[0]] = _emit(model, nodes, parts, file, data.name)
    _splice(model, made, {node.output[0] for nodes in groups for node in nodes})
    if not any(entry.domain == MICROSOFT for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return total


def _groups(model: onnx.ModelProto, initializers: dict[str, TensorProto]) -> Iterator[list[onnx.NodeProto]]:
    """Quantizable products, those of the same rows together."""
    by_rows: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        weight = initializers.get(node.input[1]) if node.op_type == "MatMul" and not node.domain else None
        if weight is not None and weight.data_type == TensorProto.FLOAT and len(weight.dims) == 2:
            by_rows.setdefault(node.input[0], []).append(node)
    yield from by_rows.values()


def _read(tensor: TensorProto, weights: WeightSources) -> np.ndarray:
    if not external_data_helper.uses_external_data(tensor):
        return numpy_helper.to_array(tensor)
    location, offset, _ = external_entry(tensor)
    return np.memmap(weights.file(location, tensor.name), np.float32, "r", offset, tuple(tensor.dims))


def _quantized(weight: np.ndarray, bits: int, block: int, symmetric: bool) -> tuple[onnx.NodeProto, list[np.ndarray]]:
    """The quantizer's node for a (K, N) weight, and its operands behind the first."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    dense = np.ascontiguousarray(weight)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["rows", "weight"], ["out"], "product")],
        "product",
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["rows", dense.shape[0]])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["rows", dense.shape[1]])],
        [numpy_helper.from_array(dense, "weight")],
    )
    quantizer = MatMulNBitsQuantizer(
        helper.make_model(graph),
        bits=bits,
        block_size=block,
        is_symmetric=symmetric,
        accuracy_level=ACCURACY_LEVEL,
        op_types_to_quantize=("MatMul",),
    )
    quantizer.process()
    made = quantizer.model.model.graph
    operands = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.initializer}
    return made.node[0], [operands[name] for name in made.node[0].input[1:]]


def _emit(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    parts: Sequence[tuple[onnx.NodeProto, list[np.ndarray]]],
    file: BinaryIO,
    location: str,
) -> list[onnx.NodeProto]:
    """One product for all, and the split that gives each its columns."""
    name = nodes[0].output[0]
    node = onnx.NodeProto()
    node.CopyFrom(parts[0][0])
    columns = [next(a.i for a in part.attribute if a.name == "N") for part, _ in parts]
    for attribute in node.attribute:
        if attribute.name == "N":
            attribute.i = sum(columns)
    operands = []
    for index, arrays in enumerate(zip(*(arrays for _, arrays in parts), strict=True)):
        tensor_name = f"{name}/quantized/{index}"
        _store(model, tensor_name, np.concatenate(arrays) if len(arrays) > 1 else arrays[0], file, location)
        operands.append(tensor_name)
    del node.input[:], node.output[:]
    node.name = f"{name}/quantized"
    node.input.extend([nodes[0].input[0], *operands])
    if len(nodes) == 1:
        node.output.append(name)
        return [node]
    node.output.append(f"{name}/together")
    sizes = f"{name}/columns"
    model.graph.initializer.append(numpy_helper.from_array(np.array(columns, np.int64), sizes))
    outputs = [part.output[0] for part in nodes]
    return [node, helper.make_node("Split", [node.output[0], sizes], outputs, f"{name}/apart", axis=-1)]


def _store(model: onnx.ModelProto, name: str, array: np.ndarray, file: BinaryIO, location: str) -> None:
    """Append an array to the file of weights, and name it in the graph."""
    file.write(b"\0" * (-file.tell() % ALIGNMENT))
    tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    offset = file.tell()
    file.write(np.ascontiguousarray(array).tobytes())
    tensor.data_location = TensorProto.EXTERNAL
    set_external_entry(tensor, location, offset, array.nbytes)
    model.graph.initializer.append(tensor)


def _splice(model: onnx.ModelProto, made: dict[str, list[onnx.NodeProto]], gone: set[str]) -> None:
    """Put the new nodes where the first of the old ones stood; drop those, and weights that nobody reads."""
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.output and node.output[0] in made:
            nodes += made[node.output[0]]
        elif not (node.output and node.output[0] in gone):
            nodes.append(node)
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    read = {name for node in kept for name in node.input} | {value.name for value in model.graph.output}
    tensors = [tensor for tensor in model.graph.initializer if tensor.name in read]
    copies = [TensorProto.FromString(tensor.SerializeToString()) for tensor in tensors]
    del model.graph.initializer[:]
    model.graph.initializer.extend(copies)


@contextmanager
def _quiet() -> Iterator[None]:
    """The quantizer tells of every node."""
    logger = logging.getLogger("onnxruntime.quantization.matmul_nbits_quantizer")
    before: Any = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
