"""Small decoders whose attentions are fused operators, one writer an operator. The interface is found, not given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from graph_writer import GraphWriter
from mask_graphs import add_terms
from onnx import TensorProto

from qbpass.admission import admit
from qbpass.admission.report import SiteReport
from qbpass.models.decoder import Decoder
from qbpass.models.find_interface import find_interface

MICROSOFT = "com.microsoft"
WIDTH = 24  # of the hidden states
VOCABULARY = 16
KEYS = "past + queries"


@dataclass(frozen=True)
class Fused:
    """One layer's attention. `attributes` go to the node as they are; `added` names a form of mask_graphs."""

    operator: str = "gqa"  # gqa | mha | onnx | ms | decomposed
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    value_dim: int = 0  # 0: as head_dim
    packed: str = "none"  # none | qkv | kv
    joined: str = "inside"  # inside | outside | nowhere: where the past meets the new rows
    rank: int = 4  # of ONNX Attention's operands
    added: str = "none"
    boolean: bool = False  # the mask as booleans, not as numbers to add
    batch: int | str = 1
    elem_type: int = TensorProto.FLOAT
    cache_type: int | None = None
    extras: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # float weights by operand name
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def values(self) -> int:
        """Columns of a value head."""
        return self.value_dim or self.head_dim


#: Operand names of com.microsoft's operators, in the order of their schemas.
GQA = (
    *("query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache"),
    *("sin_cache", "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale", "q_norm_weight"),
    "k_norm_weight",
)
MHA = ("query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value")
ONNX = ("query", "key", "value", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
MS = ("input", "weights", "bias", "mask_index", "past", "attention_bias")


class FusedGraph:
    """Writes a decoder, layer by layer."""

    def __init__(self, layers: Sequence[Fused], opset: int) -> None:
        self.writer = GraphWriter()
        self.layers = layers
        self.opset = opset
        self.random = np.random.default_rng(0)
        self.dtype = "float16" if layers[0].elem_type == TensorProto.FLOAT16 else "float32"

    def decoder(self) -> Decoder:
        writer, first = self.writer, self.layers[0]
        writer.input("input_ids", TensorProto.INT64, first.batch, "queries")
        writer.input("attention_mask", TensorProto.INT64, first.batch, KEYS)
        hidden = writer.node("Gather", [self.weight(VOCABULARY, WIDTH), "input_ids"], "embedding")
        forms = dict.fromkeys(layer.added for layer in self.layers if layer.added != "none")
        terms = {form: add_terms(form, writer, "attention_mask", first.heads, self.dtype) for form in forms}
        for number, layer in enumerate(self.layers):
            hidden = self.attend(f"l{number}.", number, layer, hidden, terms.get(layer.added, []))
        writer.node("MatMul", [hidden, self.weight(WIDTH, VOCABULARY)], "logits")
        writer.output("logits", first.elem_type, first.batch, "queries", VOCABULARY)
        model = writer.model()
        model.opset_import[0].version = self.opset
        return Decoder(Path("fused.onnx"), model, find_interface(model))

    def attend(self, at: str, number: int, layer: Fused, hidden: str, terms: list[str]) -> str:
        mask = self.mask(layer, terms, at)
        write = {"gqa": self.gqa, "mha": self.mha, "onnx": self.onnx, "ms": self.ms, "decomposed": self.decomposed}[
            layer.operator
        ]
        given = write(at, number, layer, hidden, mask)
        if layer.operator == "decomposed" or (layer.operator == "onnx" and layer.rank == 4):
            turned = self.writer.node("Transpose", [given], f"{at}turned", perm=[0, 2, 1, 3])
            given = self.writer.node("Reshape", [turned, self.writer.constant([0, 0, -1])], f"{at}flat")
        return self.writer.node("MatMul", [given, self.weight(layer.heads * layer.values, WIDTH)], f"{at}out")

    def mask(self, layer: Fused, terms: list[str], at: str) -> str:
        if not terms:
            return ""
        term = terms[0] if len(terms) == 1 else self.writer.node("Add", terms, f"{at}added")
        if layer.boolean:
            term = self.writer.node("Equal", [term, self.writer.constant(0, self.dtype)], f"{at}allowed_keys")
        # (queries, keys) as masks are written, (1, heads or 1, queries, keys) as the operators want them
        shape = self.writer.node("Shape", [term], f"{at}mask_shape")
        rows = self.writer.node("Slice", [shape, *map(self.writer.constant, ([-2], [1 << 40]))], f"{at}mask_rows")
        target = self.writer.node("Concat", [self.writer.constant([1, -1]), rows], f"{at}mask_target", axis=0)
        return self.writer.node("Reshape", [term, target], f"{at}wide_mask")

    def gqa(self, at: str, number: int, layer: Fused, hidden: str, mask: str) -> str:
        sizes = (layer.heads, layer.kv_heads, layer.kv_heads)
        operands = {"past_key": f"past.{number}.key", "past_value": f"past.{number}.value", **self.lengths()}
        if layer.packed == "qkv":
            operands["query"] = self.project(hidden, sum(sizes) * layer.head_dim, f"{at}qkv", layer)
        else:
            for part, heads in zip(("query", "key", "value"), sizes, strict=True):
                operands[part] = self.project(hidden, heads * layer.head_dim, f"{at}{part}", layer)
        operands["attention_bias"] = mask
        attributes = {"num_heads": layer.heads, "kv_num_heads": layer.kv_heads, **layer.attributes}
        return self.node("GroupQueryAttention", GQA, operands, f"{at}gqa", number, layer, attributes)

    def mha(self, at: str, number: int, layer: Fused, hidden: str, mask: str) -> str:
        operands = {"attention_bias": mask}
        if layer.joined == "inside":
            operands |= {"past_key": f"past.{number}.key", "past_value": f"past.{number}.value"}
        if layer.packed == "qkv":
            flat = self.project(hidden, 3 * layer.heads * layer.head_dim, f"{at}qkv", layer)
            operands["query"] = self.reshape(flat, [0, 0, layer.heads, 3, layer.head_dim], f"{at}packed")
        else:
            operands["query"] = self.project(hidden, layer.heads * layer.head_dim, f"{at}query", layer)
            operands |= self.keys_and_values(at, number, layer, hidden)
        attributes = {"num_heads": layer.heads, **layer.attributes}
        return self.node("MultiHeadAttention", MHA, operands, f"{at}mha", number, layer, attributes)

    def keys_and_values(self, at: str, number: int, layer: Fused, hidden: str) -> dict[str, str]:
        """(1, q, heads * d); (1, q, heads, 2, d) packed; or (1, heads, n, d) joined with the past."""
        if layer.packed == "kv":
            flat = self.project(hidden, 2 * layer.heads * layer.head_dim, f"{at}kv", layer)
            return {"key": self.reshape(flat, [0, 0, layer.heads, 2, layer.head_dim], f"{at}packed")}
        heads = layer.kv_heads if layer.operator == "onnx" else layer.heads
        made = {}
        for part, width in (("key", layer.head_dim), ("value", layer.values)):
            made[part] = self.project(hidden, heads * width, f"{at}{part}", layer)
            if layer.joined == "outside" or layer.operator == "decomposed":
                rows = self.turned(made[part], heads, width, f"{at}{part}")
                made[part] = f"present.{number}.{part}"
                self.writer.node("Concat", [f"past.{number}.{part}", rows], made[part], axis=-2)
        return made

    def onnx(self, at: str, number: int, layer: Fused, hidden: str, mask: str) -> str:
        operands = {"attn_mask": mask, "query": self.project(hidden, layer.heads * layer.head_dim, f"{at}query", layer)}
        if layer.joined == "inside":
            operands |= {"past_key": f"past.{number}.key", "past_value": f"past.{number}.value"}
        operands |= self.keys_and_values(at, number, layer, hidden)
        attributes = dict(layer.attributes)
        if layer.rank == 3:
            attributes |= {"q_num_heads": layer.heads, "kv_num_heads": layer.kv_heads}
        else:
            operands["query"] = self.turned(operands["query"], layer.heads, layer.head_dim, f"{at}query")
            if layer.joined == "inside":
                for part, width in (("key", layer.head_dim), ("value", layer.values)):
                    operands[part] = self.turned(operands[part], layer.kv_heads, width, f"{at}{part}")
        return self.node("Attention", ONNX, operands, f"{at}attention", number, layer, attributes, domain="")

    def decomposed(self, at: str, number: int, layer: Fused, hidden: str, mask: str) -> str:
        """Two products and a softmax over a cache joined outside; a KV head for each query head."""
        flat = self.project(hidden, layer.heads * layer.head_dim, f"{at}query", layer)
        query = self.turned(flat, layer.heads, layer.head_dim, f"{at}query")
        made = self.keys_and_values(at, number, layer, hidden)
        self.cache(number, layer)
        options = {"domain": MICROSOFT, "alpha": layer.head_dim**-0.5, "transB": 1}
        scores = self.writer.node("FusedMatMul", [query, made["key"]], f"{at}qk", **options)
        scores = self.writer.node("Add", [scores, mask], f"{at}masked")
        weights = self.writer.node("Softmax", [scores], f"{at}softmax", axis=-1)
        return self.writer.node("MatMul", [weights, made["value"]], f"{at}output")

    def ms(self, at: str, number: int, layer: Fused, hidden: str, mask: str) -> str:
        widths = [layer.heads * layer.head_dim] * 2 + [layer.heads * layer.values]
        operands = {"input": hidden, "weights": self.weight(WIDTH, sum(widths)), "bias": self.weight(sum(widths))}
        operands["attention_bias"] = mask
        attributes = {"num_heads": layer.heads, **layer.attributes}
        if layer.joined == "nowhere":
            return self.written("Attention", MS, operands, f"{at}ms", layer, attributes, MICROSOFT)
        size = (2, layer.batch, layer.heads)
        operands["past"] = self.writer.input(f"past.{number}", layer.elem_type, *size, "past", layer.head_dim)
        node = self.written("Attention", MS, operands, f"{at}ms", layer, attributes, MICROSOFT)
        present = self.writer.output(f"present.{number}", layer.elem_type, *size, KEYS, layer.head_dim)
        self.writer.nodes[-1].output.append(present)
        return node

    def node(
        self,
        operator: str,
        order: Sequence[str],
        operands: dict[str, str],
        name: str,
        number: int,
        layer: Fused,
        attributes: Mapping[str, Any],
        domain: str = MICROSOFT,
    ) -> str:
        """The operator's node, with the cache's inputs and outputs."""
        node = self.written(operator, order, operands, name, layer, attributes, domain)
        if layer.joined != "nowhere":
            presents = self.cache(number, layer)
            self.writer.nodes[-1].output.extend(presents if layer.joined == "inside" else [])
        return node

    def cache(self, number: int, layer: Fused) -> list[str]:
        """The cache's inputs and outputs; returns the outputs."""
        heads = layer.kv_heads if layer.operator in ("gqa", "onnx") else layer.heads
        kind = layer.cache_type or layer.elem_type
        presents = []
        for part, width in (("key", layer.head_dim), ("value", layer.values)):
            self.writer.input(f"past.{number}.{part}", kind, layer.batch, heads, "past", width)
            presents.append(self.writer.output(f"present.{number}.{part}", kind, layer.batch, heads, KEYS, width))
        return presents

    def written(
        self,
        operator: str,
        order: Sequence[str],
        operands: dict[str, str],
        name: str,
        layer: Fused,
        attributes: Mapping[str, Any],
        domain: str,
    ) -> str:
        operands = {**operands, **{part: self.weight(*shape) for part, shape in layer.extras.items()}}
        inputs = [operands.get(part, "") for part in order]
        while not inputs[-1]:
            inputs.pop()
        return self.writer.node(operator, inputs, name, domain=domain, **attributes)

    def lengths(self) -> dict[str, str]:
        """seqlens_k and total_sequence_length, as onnxruntime-genai computes them from the attention mask."""
        writer = self.writer
        if not any(node.output[0] == "seqlens_k" for node in writer.nodes):
            total = writer.node("ReduceSum", ["attention_mask", writer.constant([1])], "total", keepdims=0)
            last = writer.node("Sub", [total, writer.constant([1])], "last")
            writer.node("Cast", [last], "seqlens_k", to=TensorProto.INT32)
            size = writer.node("Gather", [writer.node("Shape", ["attention_mask"], "size"), writer.constant(1)], "keys")
            writer.node("Cast", [size], "total_sequence_length", to=TensorProto.INT32)
        return {"seqlens_k": "seqlens_k", "total_sequence_length": "total_sequence_length"}

    def project(self, hidden: str, width: int, name: str, layer: Fused) -> str:
        return self.writer.node("MatMul", [hidden, self.weight(WIDTH, width)], f"{name}.flat")

    def reshape(self, tensor: str, shape: list[int], name: str) -> str:
        return self.writer.node("Reshape", [tensor, self.writer.constant(shape)], name)

    def turned(self, flat: str, heads: int, width: int, name: str) -> str:
        """(1, heads, rows, width)."""
        split = self.reshape(flat, [0, 0, heads, width], f"{name}.split")
        return self.writer.node("Transpose", [split], f"{name}.heads", perm=[0, 2, 1, 3])

    def weight(self, *shape: int) -> str:
        return self.writer.constant(self.random.standard_normal(shape), self.dtype)


def fused_decoder(*layers: Fused, opset: int | None = None) -> Decoder:
    """A decoder with these attentions, one a layer."""
    layers = layers or (Fused(),)
    needed = 23 if any(layer.operator == "onnx" for layer in layers) else 18
    if any("_window_size" in name for layer in layers if layer.operator == "onnx" for name in layer.attributes):
        needed = 25
    return FusedGraph(layers, opset or needed).decoder()


def only_report(*layers: Fused, opset: int | None = None) -> SiteReport:
    """The report of a decoder with one attention."""
    (report,) = admit(fused_decoder(*layers, opset=opset)).sites
    return report


def codes(report: SiteReport) -> list[str]:
    return [diagnostic.code for diagnostic in report.diagnostics]
