"""Small decoders built node by node, so that tests of the `models` room need no exporter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
VOCABULARY, HEADS, KV_HEADS, HEAD_DIM = 53, 4, 2, 8
HIDDEN = HEADS * HEAD_DIM


class Builder:
    """Nodes and initializers of a graph in the making; each call returns the name of the new tensor."""

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(seed)

    def op(self, kind: str, *inputs: str, out: str | list[str] | None = None, domain: str = "", **attrs: Any) -> str:
        outputs = out if isinstance(out, list) else [out or f"{kind.lower()}_{len(self.nodes)}"]
        self.nodes.append(helper.make_node(kind, list(inputs), outputs, domain=domain, **attrs))
        return outputs[0]

    def const(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"const_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        value = (self._random.standard_normal(shape) * 0.3).astype(np.float32)
        self.initializers.append(numpy_helper.from_array(value, name))
        return name


def tiny_decoder(layers: int = 2, attention: str = "decomposed", last_only: str | None = None) -> onnx.ModelProto:
    """A decoder with rotary-like positions, grouped KV heads, a causal mask and a residual stream. It runs.

    attention: "decomposed", "gqa" (GroupQueryAttention), "onnx" (Attention-23 with past),
    "onnx_concat" (past appended before Attention-23)
    last_only: None, "gather" (index -1 before the head), "slice" (from a graph input), "dim" (the logits have one row)
    """
    b = Builder()
    inputs = [
        value("input_ids", INT64, 1, "q"),
        value("attention_mask", INT64, 1, "n"),
        value("position_ids", INT64, 1, "q"),
    ]
    outputs = [value("logits", FLOAT, 1, 1 if last_only == "dim" else "q", VOCABULARY)]
    x = b.op("Gather", b.weight("embedding", VOCABULARY, HIDDEN), "input_ids")
    angles = b.op(
        "Mul", b.op("Unsqueeze", b.op("Cast", "position_ids", to=FLOAT), b.const([1, 3])), b.weight("freq", HEAD_DIM)
    )
    shared = {"cos": b.op("Cos", angles), "mask": _causal_mask(b), **(_gqa_lengths(b) if attention == "gqa" else {})}
    for layer in range(layers):
        for kind in ("key", "value"):
            inputs.append(value(f"past.{layer}.{kind}", FLOAT, 1, KV_HEADS, "past", HEAD_DIM))
            outputs.append(value(f"present.{layer}.{kind}", FLOAT, 1, KV_HEADS, "n", HEAD_DIM))
        x = b.op(
            "Add",
            x,
            b.op("MatMul", _attention(b, x, layer, attention, shared), b.weight(f"wo.{layer}", HIDDEN, HIDDEN)),
        )
    x = b.op("Mul", x, b.weight("norm", HIDDEN))
    if last_only == "gather":
        x = b.op("Unsqueeze", b.op("Gather", x, b.const(-1), axis=1), b.const([1]))
    if last_only == "slice":
        inputs.append(value("keep", INT64, 1))
        x = b.op("Slice", x, b.op("Neg", "keep"), b.const([2**63 - 1]), b.const([1]))
    b.op("MatMul", x, b.weight("head", HIDDEN, VOCABULARY), out="logits")
    return as_model(b, inputs, outputs)


def as_model(b: Builder, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
    graph = helper.make_graph(b.nodes, "tiny", inputs, outputs, b.initializers)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def value(name: str, dtype: int, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def _causal_mask(b: Builder) -> str:
    """(1, 1, q, n): 0 where the key is at or before the query and not padded, else a large negative number."""
    keys = b.op("Range", b.const(0), b.op("Squeeze", b.op("Shape", "attention_mask", start=1, end=2)), b.const(1))
    seen = b.op("LessOrEqual", keys, b.op("Unsqueeze", "position_ids", b.const([1, 3])))
    real = b.op("Unsqueeze", b.op("Cast", "attention_mask", to=TensorProto.BOOL), b.const([1, 2]))
    return b.op("Where", b.op("And", seen, real), b.const(0.0, np.float32), b.const(-1e9, np.float32))


def _gqa_lengths(b: Builder) -> dict[str, str]:
    total = b.op("Cast", b.op("Squeeze", b.op("Shape", "attention_mask", start=1, end=2)), to=TensorProto.INT32)
    last = b.op("Sub", b.op("ReduceSum", "attention_mask", b.const([1]), keepdims=0), b.const(1))
    return {"total": total, "last": b.op("Cast", last, to=TensorProto.INT32)}


def _attention(b: Builder, x: str, layer: int, form: str, shared: dict[str, str]) -> str:
    kv_width = KV_HEADS * HEAD_DIM
    q, k, v = (
        b.op("MatMul", x, b.weight(f"w{kind}.{layer}", HIDDEN, width))
        for kind, width in (("q", HIDDEN), ("k", kv_width), ("v", kv_width))
    )
    past, present = ([f"{side}.{layer}.{kind}" for kind in ("key", "value")] for side in ("past", "present"))
    if form == "gqa":
        return b.op(
            "GroupQueryAttention", q, k, v, *past, shared["last"], shared["total"],
            out=[f"attention.{layer}", *present], domain="com.microsoft", num_heads=HEADS, kv_num_heads=KV_HEADS,
        )  # fmt: skip
    q, k, v = (_split_heads(b, tensor, heads) for tensor, heads in ((q, HEADS), (k, KV_HEADS), (v, KV_HEADS)))
    q, k = b.op("Mul", q, shared["cos"]), b.op("Mul", k, shared["cos"])
    if form == "onnx":
        heads = b.op("Attention", q, k, v, shared["mask"], *past, out=[f"attention.{layer}", *present])
    else:
        # Values first: nothing but the dataflow says which of the two holds the keys.
        v = b.op("Concat", past[1], v, axis=2, out=present[1])
        k = b.op("Concat", past[0], k, axis=-2, out=present[0])
        heads = (
            b.op("Attention", q, k, v, shared["mask"])
            if form == "onnx_concat"
            else _softmax(b, q, k, v, shared["mask"])
        )
    return b.op("Reshape", b.op("Transpose", heads, perm=[0, 2, 1, 3]), b.const([1, -1, HIDDEN]))


def _split_heads(b: Builder, x: str, heads: int) -> str:
    return b.op("Transpose", b.op("Reshape", x, b.const([1, -1, heads, HEAD_DIM])), perm=[0, 2, 1, 3])


def _softmax(b: Builder, q: str, k: str, v: str, mask: str) -> str:
    k, v = (_repeat_kv(b, tensor) for tensor in (k, v))
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = b.op("Add", b.op("Mul", scores, b.const(HEAD_DIM**-0.5, np.float32)), mask)
    return b.op("MatMul", b.op("Softmax", scores, axis=-1), v)


def _repeat_kv(b: Builder, x: str) -> str:
    repeated = b.op("Expand", b.op("Unsqueeze", x, b.const([2])), b.const([1, 1, HEADS // KV_HEADS, 1, 1]))
    return b.op("Reshape", repeated, b.const([1, HEADS, -1, HEAD_DIM]))


def save(model: onnx.ModelProto, folder: Path, name: str = "model.onnx", external: bool = False) -> Path:
    """Writes the model; external: weights of 1 KiB and more go to `<name>.data`."""
    folder.mkdir(parents=True, exist_ok=True)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    path = folder / name
    onnx.save_model(copy, path, save_as_external_data=external, location=f"{name}.data", size_threshold=1024)
    return path


def feeds(
    layers: int, tokens: list[int], past: list[np.ndarray[Any, Any]] | None = None
) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs of one call of `tiny_decoder`; past: [key, value] of each layer, none for a first call."""
    past = past or [np.zeros((1, KV_HEADS, 0, HEAD_DIM), np.float32)] * (2 * layers)
    start = past[0].shape[2]
    names = [f"past.{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]
    return {
        "input_ids": np.array([tokens], np.int64),
        "attention_mask": np.ones((1, start + len(tokens)), np.int64),
        "position_ids": np.arange(start, start + len(tokens), dtype=np.int64)[None],
        **dict(zip(names, past, strict=True)),
    }


def renamed(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    """The same graph with meaningless names and inputs and outputs in reverse order; old name -> new name."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    names = {*(v.name for v in graph.input), *(t.name for t in graph.initializer)}
    names |= {name for node in graph.node for name in node.output}
    new = {old: f"t{number}" for number, old in enumerate(sorted(names, key=lambda n: n[::-1]))} | {"": ""}
    for node in graph.node:
        node.input[:] = [new[name] for name in node.input]
        node.output[:] = [new[name] for name in node.output]
    for item in (*graph.input, *graph.output, *graph.initializer):
        item.name = new[item.name]
    for values in (graph.input, graph.output):
        reverse = list(values)[::-1]
        del values[:]
        values.extend(reverse)
    return copy, new
