"""Small decoders with a knob for each thing a check looks at. The default is admitted; a turned knob gives one code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from graph_writer import GraphWriter
from mask_graphs import add_terms
from onnx import TensorProto, helper

from qbpass.models.contract import CachePair, DecoderContract, KVPair
from qbpass.models.decoder import Decoder
from qbpass.models.interface import CrossKV, Interface

VOCABULARY = 16


@dataclass(frozen=True)
class Knobs:
    layers: int = 1
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    value_dim: int | None = None
    batch: int | str = 1
    rows: int | str = "queries"
    query_rows: str | None = None  # "first": the queries' first row alone
    query_heads: str | None = None  # a symbol in place of Q's head count, which an input gives
    dtype: str = "float32"  # float16 | float64: of everything but sizes
    product: str = "fused"  # fused | matmul | unscaled | einsum | rank3 | transposed_queries
    repeat: str = "expand"  # expand | none | tile | uneven | narrow | rolled_rows | shifted | scaled | latent
    join: str = "past_first"  # past_first | new_first | turned: rows in front of heads, and turned back behind it
    terms: str = "causal"  # see mask_graphs.py
    slice_by_keys: bool = False  # the mask is cut to the extent that the shape of the repeated keys says
    scores: str = "plain"  # plain | softcap | sinks | where | twice
    softmax: str = "plain"  # plain | definition | definition_over_queries | spelled_out | over_queries
    weights: str = "plain"  # plain | nan_guard | halved
    values: str = "value"  # value | key: which cache the AV product reads
    leak: str = "none"  # none | present | probabilities
    attention: str = "decomposed"  # decomposed | gqa | linear
    sites_per_pair: int = 1
    cross: str = "none"  # none | foreign | states | cache: what a second attention reads
    router: bool = False
    past: bool = True  # whether a past is taken
    stacked: bool = False  # one past for keys and values, (2, batch, KV heads, past, width)
    quantize: str = "no"  # hidden states through one scale for all rows: rows | flat (rows and width as one axis)
    linear_layer: bool = False  # a layer behind the attention that carries a state


class SiteGraph:
    """Writes one decoder from its knobs."""

    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs
        self.writer = GraphWriter()
        self.dtype = knobs.dtype
        self.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(knobs.dtype))
        self.keys = f"past + {knobs.rows}"
        self.random = np.random.default_rng(0)

    def decoder(self) -> Decoder:
        knobs, writer = self.knobs, self.writer
        writer.input("input_ids", TensorProto.INT64, knobs.batch, knobs.rows)
        writer.input("attention_mask", TensorProto.INT64, knobs.batch, self.keys if knobs.rows == 1 else "total")
        self.width = knobs.heads * knobs.head_dim
        hidden = writer.node("Gather", [self.weight(VOCABULARY, self.width), "input_ids"], "embedding")
        terms = add_terms(knobs.terms, writer, "attention_mask", knobs.heads, self.dtype)
        pairs = []
        for layer in range(knobs.layers):
            pairs.append(self.pair(layer))
            hidden = self.layer(layer, hidden, terms)
        if knobs.cross != "none":
            hidden = self.cross_attention(hidden)
        if knobs.linear_layer:
            hidden = self.linear_attention(hidden)
        if knobs.quantize != "no":
            hidden = self.quantized(hidden)
        if knobs.router:
            hidden = self.route(hidden)
        writer.node("MatMul", [hidden, self.weight(self.width, VOCABULARY)], "logits")
        writer.output("logits", self.elem_type, knobs.batch, knobs.rows, VOCABULARY)
        contract = DecoderContract("input_ids", "attention_mask", None, "logits", tuple(pairs), VOCABULARY)
        interface = Interface.of(contract)
        if knobs.stacked:
            pairs = [
                replace(CachePair(**vars(p)), past_key=s, past_value=s) for p in pairs for s in [f"past.{p.layer}"]
            ]
            interface = replace(interface, kv=tuple(pairs))
        if not knobs.past:
            pairs = [replace(CachePair(**vars(pair)), past_key=None, past_value=None) for pair in interface.kv]
            interface = replace(interface, kv=tuple(pairs))
        if knobs.cross == "cache":
            interface = replace(interface, cross_kv=(CrossKV(0, "encoder", "encoder"),))
        return Decoder(Path("tiny.onnx"), writer.model(), interface)

    def pair(self, layer: int) -> KVPair:
        knobs = self.knobs
        names = [f"{when}.{layer}.{what}" for when in ("past", "present") for what in ("key", "value")]
        dims = {"key": knobs.head_dim, "value": knobs.value_dim or knobs.head_dim}
        for name in names:
            if name.startswith("past") and (knobs.stacked or not knobs.past):
                continue
            give, rows = (self.writer.input, "past") if name.startswith("past") else (self.writer.output, self.keys)
            give(name, self.elem_type, knobs.batch, knobs.kv_heads, rows, dims[name.rpartition(".")[2]])
        if knobs.stacked:
            self.writer.input(f"past.{layer}", self.elem_type, 2, knobs.batch, knobs.kv_heads, "past", knobs.head_dim)
            for half, what in enumerate(("key", "value")):
                self.writer.node(
                    "Gather", [f"past.{layer}", self.writer.constant(half)], f"past.{layer}.{what}", axis=0
                )
        return KVPair(layer, *names, knobs.kv_heads, dims["key"], dims["value"], self.elem_type)

    def layer(self, layer: int, hidden: str, terms: list[str]) -> str:
        at, writer = f"l{layer}.", self.writer
        new_key = self.heads_of(hidden, self.knobs.kv_heads, self.knobs.head_dim, f"{at}new_key")
        value_dim = self.knobs.value_dim or self.knobs.head_dim
        new_value = self.heads_of(hidden, self.knobs.kv_heads, value_dim, f"{at}new_value")
        if self.knobs.attention == "gqa":
            inputs = [hidden, f"{new_key}.flat", f"{new_value}.flat", f"past.{layer}.key", f"past.{layer}.value"]
            heads = {"num_heads": self.knobs.heads, "kv_num_heads": self.knobs.kv_heads}
            node = writer.node("GroupQueryAttention", inputs, f"{at}gqa", domain="com.microsoft", **heads)
            writer.nodes[-1].output.extend([f"present.{layer}.key", f"present.{layer}.value"])
            return node
        for new, what in ((new_key, "key"), (new_value, "value")):
            if not self.knobs.past:
                writer.node("Identity", [new], f"present.{layer}.{what}")
                continue
            parts = [f"past.{layer}.{what}", new]
            if self.knobs.join == "turned":
                parts = [writer.node("Transpose", [part], f"{part}.turned", perm=[0, 2, 1, 3]) for part in parts]
                joined = writer.node("Concat", parts, f"{at}{what}.joined", axis=1)
                turned = writer.node("Transpose", [joined], f"{at}{what}.back", perm=[0, 2, 1, 3])
                writer.node("Cast", [turned], f"present.{layer}.{what}", to=self.elem_type)
                continue
            parts = parts if self.knobs.join == "past_first" else parts[::-1]
            writer.node("Concat", parts, f"present.{layer}.{what}", axis=-2)
        if self.knobs.attention == "linear":
            return hidden
        for site in range(self.knobs.sites_per_pair):
            hidden = self.attend(f"{at}{site or ''}", layer, hidden, terms)
        return hidden

    def attend(self, at: str, layer: int, hidden: str, terms: list[str]) -> str:
        knobs, writer = self.knobs, self.writer
        width = knobs.head_dim // 2 if knobs.repeat == "narrow" else knobs.head_dim
        q = self.heads_of(hidden, knobs.heads, width, f"{at}q", knobs.query_heads)
        if knobs.query_rows == "first":
            q = writer.node("Slice", [q, *(writer.constant([value]) for value in (0, 1, 2))], f"{at}q_first")
        keys = self.repeated(f"present.{layer}.key", f"{at}k", knobs.head_dim, is_key=True)
        values = self.repeated(f"present.{layer}.{knobs.values}", f"{at}v", knobs.value_dim or knobs.head_dim)
        scores = self.scores(q, keys, at)
        for index, term in enumerate(terms):
            if knobs.slice_by_keys:
                ends = writer.node("Shape", [keys], f"{at}extent", start=2, end=3)
                term = writer.node(
                    "Slice", [term, writer.constant([0]), ends, writer.constant([-1])], f"{at}cut{index}"
                )
            scores = writer.node("Add", [scores, term], f"{at}masked{index}")
        if knobs.leak == "present":
            writer.node("ReduceMax", [f"present.{layer}.key"], f"{at}peak", keepdims=0)
            writer.output(f"{at}peak", self.elem_type)
        weights = self.weights(self.changed(scores, at), at)
        if knobs.product == "rank3":
            values = writer.node("Squeeze", [values, writer.constant([0])], f"{at}v3")
        return self.projected(writer.node("MatMul", [weights, values], f"{at}output"), at)

    def heads_of(self, hidden: str, heads: int, width: int, name: str, symbol: str | None = None) -> str:
        """(batch, heads, rows, width)."""
        writer = self.writer
        flat = writer.node("MatMul", [hidden, self.weight(self.width, heads * width)], f"{name}.flat")
        target = writer.input(symbol, TensorProto.INT64, 4) if symbol else writer.constant([0, -1, heads, width])
        split = writer.node("Reshape", [flat, target], f"{name}.split")
        writer.node("Transpose", [split], name, perm=[0, 2, 1, 3])
        writer.declare(name, self.elem_type, self.knobs.batch, symbol or heads, self.knobs.rows, width)
        return name

    def repeated(self, present: str, name: str, width: int, is_key: bool = False) -> str:
        """The present with one copy of its KV head for each query head: (batch, heads, keys, width)."""
        knobs, writer = self.knobs, self.writer
        group = knobs.heads // knobs.kv_heads
        if knobs.repeat == "none":
            return present
        if knobs.repeat == "latent":
            wide = writer.node("MatMul", [present, self.weight(width, group * width)], f"{name}.projected")
            split = writer.node("Reshape", [wide, writer.constant([0, knobs.kv_heads, -1, group, width])], f"{name}.5")
            turned = writer.node("Transpose", [split], f"{name}.6", perm=[0, 1, 3, 2, 4])
            return writer.node("Reshape", [turned, writer.constant([0, knobs.heads, -1, width])], name)
        if knobs.repeat == "tile":
            return writer.node("Concat", [present] * group, name, axis=1)
        if knobs.repeat == "uneven":
            heads = [head * knobs.kv_heads // knobs.heads for head in range(knobs.heads)]
            return writer.node("Gather", [present, writer.constant(heads)], name, axis=1)
        wide = writer.node("Unsqueeze", [present, writer.constant([2])], f"{name}.wide")
        copies = writer.node("Expand", [wide, writer.constant([1, 1, group, 1, 1])], f"{name}.copies")
        flat = writer.node("Reshape", [copies, writer.constant([0, knobs.heads, -1, width])], f"{name}.all")
        writer.declare(flat, self.elem_type, knobs.batch, knobs.heads, self.keys, width)
        return self.bent(flat, name) if is_key else flat

    def bent(self, keys: str, name: str) -> str:
        """What a knob does to the keys behind the repeat."""
        writer = self.writer
        if self.knobs.repeat == "narrow":
            ends = [writer.constant([value]) for value in (0, self.knobs.head_dim // 2, 3)]
            return writer.node("Slice", [keys, *ends], name)
        if self.knobs.repeat == "rolled_rows":
            # The first row goes behind the last.
            parts = [
                writer.node("Slice", [keys, *(writer.constant([value]) for value in (*ends, 2))], f"{name}.{ends[0]}")
                for ends in ((1, 1 << 40), (0, 1))
            ]
            return writer.node("Concat", parts, name, axis=2)
        if self.knobs.repeat == "shifted":
            return writer.node("Add", [keys, writer.constant(1, self.dtype)], name)
        if self.knobs.repeat == "scaled":
            return writer.node("Mul", [writer.constant(0.5, self.dtype), keys], name)
        return keys

    def scores(self, q: str, keys: str, at: str) -> str:
        """(batch, heads, rows, keys), scaled."""
        knobs, writer, name = self.knobs, self.writer, f"{at}qk"
        scale = knobs.head_dim**-0.5
        if knobs.product == "fused":
            return writer.node("FusedMatMul", [q, keys], name, domain="com.microsoft", alpha=scale, transB=1)
        if knobs.product == "transposed_queries":
            turned = writer.node("Transpose", [q], f"{at}q_turned", perm=[0, 1, 3, 2])
            options = {"domain": "com.microsoft", "alpha": scale, "transA": 1, "transB": 1}
            return writer.node("FusedMatMul", [turned, keys], name, **options)
        if knobs.product == "einsum":
            product = writer.node("Einsum", [q, keys], name, equation="bhqd,bhnd->bhqn")
        elif knobs.product == "rank3":
            q3, k3 = (writer.node("Squeeze", [x, writer.constant([0])], f"{at}{x}.3") for x in (q, keys))
            turned = writer.node("Transpose", [k3], f"{at}k_turned", perm=[0, 2, 1])
            product = writer.node("MatMul", [q3, turned], name)
        else:
            turned = writer.node("Transpose", [keys], f"{at}k_turned", perm=[0, 1, 3, 2])
            product = writer.node("MatMul", [q, turned], name)
        if knobs.product == "unscaled":
            return product
        return writer.node("Mul", [product, writer.constant(scale, self.dtype)], f"{at}scaled")

    def changed(self, scores: str, at: str) -> str:
        """What a knob does to the scores before the softmax."""
        knobs, writer = self.knobs, self.writer
        if knobs.scores == "softcap":
            cap = writer.constant(50, self.dtype)
            small = writer.node("Tanh", [writer.node("Div", [scores, cap], f"{at}divided")], f"{at}tanh")
            return writer.node("Mul", [small, cap], f"{at}capped")
        if knobs.scores == "sinks":
            rows = writer.node("Shape", [f"{at}q"], f"{at}q_rows", start=2, end=3)
            shape = writer.node(
                "Concat", [writer.constant([1, knobs.heads]), rows, writer.constant([1])], f"{at}sink_shape", axis=0
            )
            sink = writer.node("Expand", [self.weight(1, knobs.heads, 1, 1), shape], f"{at}sink")
            return writer.node("Concat", [scores, sink], f"{at}with_sink", axis=-1)
        if knobs.scores == "twice":
            half = writer.node("Mul", [scores, writer.constant(0.5, self.dtype)], f"{at}half")
            return writer.node("Add", [scores, half], f"{at}mixed")
        if knobs.scores == "where":
            allowed = writer.input(f"{at}allowed", TensorProto.BOOL, 1, 1, "queries", self.keys)
            return writer.node("Where", [allowed, scores, writer.constant(-1e9, self.dtype)], f"{at}chosen")
        return scores

    def weights(self, scores: str, at: str) -> str:
        """The attention weights that the AV product reads."""
        knobs, writer, name = self.knobs, self.writer, f"{at}softmax"
        if knobs.softmax.startswith("definition"):
            axes = writer.constant([-1 if knobs.softmax == "definition" else -2])
            highest = writer.node("ReduceMax", [scores, axes], f"{at}highest", keepdims=1)
            top = writer.node("Exp", [writer.node("Sub", [scores, highest], f"{at}shifted")], f"{at}exp")
            total = writer.node("ReduceSum", [top, axes], f"{at}total", keepdims=1)
            return writer.node("Div", [top, total], name)
        if knobs.softmax == "spelled_out":
            top = writer.node("Exp", [scores], f"{at}exp")
            total = writer.node("ReduceSum", [top, writer.constant([-1])], f"{at}total", keepdims=1)
            return writer.node("Div", [top, total], name)
        writer.node("Softmax", [scores], name, axis=2 if knobs.softmax == "over_queries" else -1)
        if knobs.leak == "probabilities":
            writer.output(name, self.elem_type, 1, knobs.heads, knobs.rows, self.keys)
        if knobs.scores == "sinks":
            ends = [writer.constant([value]) for value in (0, -1, 3)]
            return writer.node("Slice", [name, *ends], f"{at}without_sink")
        if knobs.weights == "nan_guard":
            nan = writer.node("IsNaN", [name], f"{at}is_nan")
            return writer.node("Where", [nan, writer.constant(0, self.dtype), name], f"{at}guarded")
        if knobs.weights == "halved":
            return writer.node("Mul", [name, writer.constant(0.5, self.dtype)], f"{at}halved")
        return name

    def projected(self, output: str, at: str) -> str:
        knobs, writer = self.knobs, self.writer
        width = knobs.heads * (knobs.value_dim or knobs.head_dim)
        if knobs.product == "rank3":
            output = writer.node("Unsqueeze", [output, writer.constant([0])], f"{at}output4")
        rows = writer.node("Transpose", [output], f"{at}rows", perm=[0, 2, 1, 3])
        flat = writer.node("Reshape", [rows, writer.constant([0, -1, width])], f"{at}flat")
        return writer.node("MatMul", [flat, self.weight(width, self.width)], f"{at}projected")

    def cross_attention(self, hidden: str) -> str:
        writer, knobs = self.writer, self.knobs
        if knobs.cross == "states":
            states = writer.input("states", self.elem_type, 1, "source", self.width)
            encoder = self.heads_of(states, knobs.heads, knobs.head_dim, "x.k")
        else:
            encoder = writer.input("encoder", self.elem_type, 1, knobs.heads, "source", knobs.head_dim)
        q = self.heads_of(hidden, knobs.heads, knobs.head_dim, "x.q")
        turned = writer.node("Transpose", [encoder], "x.turned", perm=[0, 1, 3, 2])
        weights = writer.node("Softmax", [writer.node("MatMul", [q, turned], "x.qk")], "x.softmax")
        return self.projected(writer.node("MatMul", [weights, encoder], "x.output"), "x.")

    def linear_attention(self, hidden: str) -> str:
        """One operator over queries, keys and values that are the hidden states themselves."""
        knobs, writer = self.knobs, self.writer
        size = (1, knobs.heads, knobs.head_dim, knobs.head_dim)
        state = writer.input("state", self.elem_type, *size)
        heads = {"q_num_heads": knobs.heads, "kv_num_heads": knobs.heads, "update_rule": "linear"}
        writer.node("LinearAttention", [hidden, hidden, hidden, state], "linear", domain="com.microsoft", **heads)
        writer.nodes[-1].output.append(writer.output("next_state", self.elem_type, *size))
        return "linear"

    def quantized(self, hidden: str) -> str:
        writer = self.writer
        flat = self.knobs.quantize == "flat"
        if flat:
            hidden = writer.node("Reshape", [hidden, writer.constant([-1])], "q.flat")
        small = writer.node("DynamicQuantizeLinear", [hidden], "q.small")
        writer.nodes[-1].output.extend(["q.scale", "q.zero"])
        back = writer.node("DequantizeLinear", [small, "q.scale", "q.zero"], "q.back")
        return writer.node("Reshape", [back, writer.constant([1, -1, self.width])], "q.rows") if flat else back

    def route(self, hidden: str) -> str:
        """A router's softmax over a projection: no attention."""
        writer = self.writer
        routes = writer.node("MatMul", [hidden, self.weight(self.width, self.width)], "routes")
        return writer.node("Mul", [hidden, writer.node("Softmax", [routes], "shares")], "routed")

    def weight(self, *shape: int) -> str:
        return self.writer.constant(self.random.standard_normal(shape), self.dtype)


def make_decoder(knobs: Knobs | None = None) -> Decoder:
    """A decoder whose graph has what the knobs say, and a contract that names its inputs and outputs."""
    return SiteGraph(knobs or Knobs()).decoder()
