"""Admitted graphs with one edge made wrong: the operand of one node reads another tensor, or one node more lies on it.

Each corruption breaks an obligation: a (query, head) pair reads another Q, K, V or mask value than the attention that
is claimed there, rows don't come back in order, or streams are taken for queries. What only changes the model into
another one (Q of another layer, a permuted projection behind the attention) is no corruption: such a graph is rewritten
as what it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qbpass.admission.site import AttentionSite
from qbpass.models.decoder import Decoder
from qbpass.models.find_interface import find_interface

LAST = np.iinfo(np.int64).max
PER_HEAD = [[[1.0]], [[2.0]], [[1.0]], [[1.0]]]

#: The nodes to put on the edge of a tensor, the last of which is read in its place.
Build = Callable[["Edit", str], list[onnx.NodeProto]]
#: The node that reads a tensor, and the tensor: one edge.
Edge = Callable[["Edit"], tuple[onnx.NodeProto, str]]


class Edit:
    """A copy of a decoder's graph, and the sites of the original by layer."""

    def __init__(self, decoder: Decoder, sites: tuple[AttentionSite, ...], layer: int = 1) -> None:
        self.decoder, self.sites, self.site = decoder, sites, sites[layer]
        self.model = onnx.ModelProto()
        self.model.CopyFrom(decoder.model)
        self.graph = self.model.graph

    def decoder_now(self) -> Decoder:
        """The corrupted decoder, its interface read anew, as from a file."""
        return replace(self.decoder, model=self.model, interface=find_interface(self.model))

    def node(self, output: str) -> onnx.NodeProto:
        return next(node for node in self.graph.node if output in node.output)

    @property
    def mask_add(self) -> onnx.NodeProto:
        adds = (self.node(name) for name in self.site.nodes.score_path)
        return next(node for node in adds if node.op_type == "Add" and self.site.mask in node.input)

    def readers(self, tensor: str) -> list[onnx.NodeProto]:
        return [node for node in self.graph.node if tensor in node.input]

    def only(self, operator: str) -> onnx.NodeProto:
        (found,) = (node for node in self.graph.node if node.op_type == operator)
        return found

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"corrupt.c{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def rewire(self, node: onnx.NodeProto, old: str, new: str) -> None:
        """One operand of one node."""
        operands = list(node.input)
        assert operands.count(old) == 1, (node.op_type, old)
        node.input[operands.index(old)] = new

    def insert(self, node: onnx.NodeProto, operand: str, build: Build) -> str:
        """New nodes on the edge to `node`; the last one's output is read instead, and has the same declared shape."""
        made = build(self, operand)
        at = next(k for k, other in enumerate(self.graph.node) if other.output[0] == node.output[0])
        for offset, new in enumerate(made):
            self.graph.node.insert(at + offset, new)
        self.rewire(self.graph.node[at + len(made)], operand, made[-1].output[0])
        self._declare_like(operand, made[-1].output[0])
        return str(made[-1].output[0])

    def _declare_like(self, like: str, name: str) -> None:
        for value in (*self.graph.value_info, *self.graph.output, *self.graph.input):
            if value.name == like:
                twin = self.graph.value_info.add()
                twin.CopyFrom(value)
                twin.name = name
                return


def sliced(edit: Edit, data: str, start: int, end: int, axis: int, name: str, step: int = 1) -> onnx.NodeProto:
    bounds = [edit.constant([value]) for value in (start, end, axis, step)]
    return helper.make_node("Slice", [data, *bounds], [f"corrupt.{name}"])


def rolled(axis: int) -> Build:
    """The first element along an axis goes behind the last."""
    return lambda edit, data: [
        sliced(edit, data, 1, LAST, axis, "rest"),
        sliced(edit, data, 0, 1, axis, "first"),
        helper.make_node("Concat", ["corrupt.rest", "corrupt.first"], ["corrupt.rolled"], axis=axis),
    ]


def reversed_along(axis: int) -> Build:
    return lambda edit, data: [sliced(edit, data, -1, -LAST, axis, "reversed", -1)]


def one_for_all(axis: int, index: int) -> Build:
    """The first or the last element along an axis in every place."""
    return lambda edit, data: [
        sliced(edit, data, index, index + 1 or LAST, axis, "one"),
        helper.make_node("Shape", [data], ["corrupt.shape"]),
        helper.make_node("Expand", ["corrupt.one", "corrupt.shape"], ["corrupt.all"]),
    ]


def gathered(axis: int, *order: int) -> Build:
    return lambda edit, data: [
        helper.make_node("Gather", [data, edit.constant(order)], ["corrupt.gathered"], axis=axis)
    ]


def times(value: Any) -> Build:
    return lambda edit, data: [helper.make_node("Mul", [data, edit.constant(value, np.float32)], ["corrupt.times"])]


@dataclass(frozen=True)
class Corruption:
    """`code`: what admission refuses the graph with; `problem`: what the audit finds in it by running its nodes, None
    where no site is left to run or its addresses are not what is wrong. `why`: what is broken.
    """

    name: str
    apply: Callable[[Edit], None]
    code: str | None
    problem: str | None
    why: str


def _at(operand: Edge, build: Build) -> Callable[[Edit], None]:
    def apply(edit: Edit) -> None:
        node, tensor = operand(edit)
        edit.insert(node, tensor, build)

    return apply


def _mask(edit: Edit) -> tuple[onnx.NodeProto, str]:
    assert edit.site.mask is not None
    return edit.mask_add, edit.site.mask


def keys_edge(edit: Edit) -> tuple[onnx.NodeProto, str]:
    """The edge from the present key to its repeat."""
    node = next(edit.node(n) for n in edit.site.nodes.key_path if edit.site.k in edit.node(n).input)
    return node, edit.site.k


def _values(edit: Edit) -> tuple[onnx.NodeProto, str]:
    node = next(edit.node(n) for n in edit.site.nodes.value_path if edit.site.v in edit.node(n).input)
    return node, edit.site.v


def _qk_keys(edit: Edit) -> tuple[onnx.NodeProto, str]:
    qk = edit.node(edit.site.nodes.qk)
    return qk, qk.input[1]


def _weights(edit: Edit) -> tuple[onnx.NodeProto, str]:
    av = edit.node(edit.site.nodes.av)
    return av, av.input[0]


def _scores(edit: Edit) -> tuple[onnx.NodeProto, str]:
    softmax = edit.node(edit.site.nodes.softmax)
    return softmax, softmax.input[0]


def _rewired(operand: Edge, other: Callable[[Edit], str]) -> Callable[[Edit], None]:
    def apply(edit: Edit) -> None:
        node, tensor = operand(edit)
        edit.rewire(node, tensor, other(edit))

    return apply


def _tiled(operand: Edge) -> Callable[[Edit], None]:
    """The new axis of repeat_kv in front of the heads: they come out 0, 1, 0, 1 and not 0, 0, 1, 1."""

    def apply(edit: Edit) -> None:
        unsqueeze, _ = operand(edit)
        assert unsqueeze.op_type == "Unsqueeze"
        edit.rewire(unsqueeze, unsqueeze.input[1], edit.constant([1]))

    return apply


def _turn_comparison(edit: Edit) -> None:
    causal = edit.only("LessOrEqual")
    causal.input[0], causal.input[1] = causal.input[1], causal.input[0]


def _no_causal_term(edit: Edit) -> None:
    """And(causal, there) reads `there` twice."""
    causal = edit.only("LessOrEqual").output[0]
    (reader,) = edit.readers(causal)
    edit.rewire(reader, causal, next(name for name in reader.input if name != causal))


def _positions_without_past(edit: Edit) -> None:
    """Query positions read the rows of the call, not past + rows."""
    positions = edit.only("LessOrEqual").input[1]
    while edit.node(positions).op_type == "Unsqueeze":
        positions = edit.node(positions).input[0]
    add = edit.node(positions)
    assert add.op_type == "Add"
    for reader in edit.readers(positions):
        edit.rewire(reader, positions, add.input[0])


def _shifted_padding(edit: Edit) -> None:
    gather = edit.only("GatherND")
    edit.insert(gather, gather.input[0], rolled(1))


def _unmasked(edit: Edit) -> None:
    softmax, scores = _scores(edit)
    edit.rewire(softmax, scores, next(name for name in edit.mask_add.input if name != edit.site.mask))


def _masked_twice(edit: Edit) -> None:
    mask = edit.site.mask
    scores = next(name for name in edit.mask_add.input if name != mask)
    edit.insert(edit.mask_add, scores, lambda _, data: [helper.make_node("Add", [data, mask], ["corrupt.masked"])])


def _past_key(edit: Edit) -> str:
    return str(edit.site.past_key)


def _new_value(edit: Edit) -> str:
    return str(edit.site.new_value)


def _new_rows_in_front(edit: Edit) -> None:
    join = edit.node(edit.site.k)
    join.input[0], join.input[1] = join.input[1], join.input[0]


def _joined_as_heads(edit: Edit) -> None:
    (axis,) = (entry for entry in edit.node(edit.site.k).attribute if entry.name == "axis")
    axis.i = 1


def _scaled_by_extent(edit: Edit) -> None:
    """The scores times the number of keys, which a call of one row does not have in common with a block."""

    def build(edit: Edit, scores: str) -> list[onnx.NodeProto]:
        return [
            helper.make_node("Shape", [scores], ["corrupt.keys"], start=3, end=4),
            helper.make_node("Cast", ["corrupt.keys"], ["corrupt.scale"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Mul", [scores, "corrupt.scale"], ["corrupt.scaled"]),
        ]

    edit.insert(*_scores(edit), build)


def _scores_as_weights(edit: Edit) -> None:
    av, weights = _weights(edit)
    edit.rewire(av, weights, _scores(edit)[1])


def _other_weights(edit: Edit) -> None:
    av, weights = _weights(edit)
    edit.rewire(av, weights, edit.sites[0].nodes.softmax)


def _two_streams(edit: Edit) -> None:
    for value in (*edit.graph.input, *edit.graph.output, *edit.graph.value_info):
        dims = value.type.tensor_type.shape.dim
        if len(dims) > 1 and dims[0].dim_value == 1:
            dims[0].dim_value = 2


def _untransposed(edit: Edit) -> None:
    transpose = next(edit.node(name) for name in edit.site.nodes.key_path if edit.node(name).op_type == "Transpose")
    (perm,) = (entry for entry in transpose.attribute if entry.name == "perm")
    perm.ints[:] = range(len(perm.ints))


def _guard(edit: Edit) -> onnx.NodeProto:
    return edit.node(edit.site.nodes.prob_path[-1])


def _turned_guard(edit: Edit) -> None:
    guard = _guard(edit)
    guard.input[1], guard.input[2] = guard.input[2], guard.input[1]


def _guard_of_scores(edit: Edit) -> None:
    test = edit.node(_guard(edit).input[0])
    edit.rewire(test, test.input[0], _scores(edit)[1])


AHEAD = "rows see keys behind their own, which serial decoding does not have"
GROUP = "query head h must read KV head h // G"
STREAM = "keys and values must be one layer's cache, past rows first"

CORRUPTIONS: tuple[Corruption, ...] = (
    Corruption("mask columns shifted", _at(_mask, rolled(3)), "NOT_CAUSAL", "MASK_AHEAD", AHEAD),
    Corruption("mask columns reversed", _at(_mask, reversed_along(3)), "NOT_CAUSAL", "MASK_AHEAD", AHEAD),
    Corruption("first mask column for all keys", _at(_mask, one_for_all(3, 0)), "NOT_CAUSAL", "MASK_AHEAD", AHEAD),
    Corruption(
        "first mask row for all queries",
        _at(_mask, one_for_all(2, 0)),
        "SLIDING_WINDOW",
        "MASK_NOT_SERIAL",
        "query j must get its own row",
    ),
    Corruption("last mask row for all queries", _at(_mask, one_for_all(2, -1)), "NOT_CAUSAL", "MASK_AHEAD", AHEAD),
    Corruption("mask rows shifted", _at(_mask, rolled(2)), "NOT_CAUSAL", "MASK_AHEAD", "query j must get its own row"),
    Corruption("mask rows reversed", _at(_mask, reversed_along(2)), "NOT_CAUSAL", "MASK_AHEAD", "the same, reversed"),
    Corruption("mask multiplied away", _at(_mask, times(0.0)), "NOT_CAUSAL", "MASK_AHEAD", AHEAD),
    Corruption("causal comparison turned around", _turn_comparison, "NOT_CAUSAL", "MASK_AHEAD", AHEAD),
    Corruption("no causal term in the mask", _no_causal_term, "NOT_CAUSAL", "MASK_AHEAD", AHEAD),
    Corruption(
        "mask positions without the past",
        _positions_without_past,
        "SLIDING_WINDOW",
        "MASK_NOT_SERIAL",
        "a row's position is past + j, in a block as alone",
    ),
    Corruption(
        "padding mask shifted by a column",
        _shifted_padding,
        None,
        "MASK_NOT_SERIAL",
        "column t hides key t; with nothing padded away the mask is right, so only a padded token shows it",
    ),
    Corruption("softmax reads the scores before the mask", _unmasked, "NOT_CAUSAL", "MASK_AHEAD", AHEAD),
    Corruption("masked twice", _masked_twice, "MASK_FORM", "UNTRACED", "which of two masks moves with the queries?"),
    Corruption("key heads tiled", _tiled(keys_edge), "STRIDE_LEGALITY", "KEY_MAP", GROUP),
    Corruption("value heads tiled", _tiled(_values), "STRIDE_LEGALITY", "VALUE_MAP", GROUP),
    Corruption("key heads reversed", _at(keys_edge, reversed_along(1)), "STRIDE_LEGALITY", "KEY_MAP", GROUP),
    Corruption("value heads reversed", _at(_values, reversed_along(1)), "STRIDE_LEGALITY", "VALUE_MAP", GROUP),
    Corruption("one key head for all", _at(keys_edge, one_for_all(1, 0)), "STRIDE_LEGALITY", "KEY_MAP", GROUP),
    Corruption(
        "repeated key heads swapped", _at(_qk_keys, gathered(1, 0, 2, 1, 3)), "STRIDE_LEGALITY", "KEY_MAP", GROUP
    ),
    Corruption("key rows shifted", _at(keys_edge, rolled(2)), "STRIDE_LEGALITY", "KEY_MAP", "key t is row t"),
    Corruption("key rows reversed", _at(keys_edge, reversed_along(2)), "STRIDE_LEGALITY", "KEY_MAP", "key t is row t"),
    Corruption("value rows shifted", _at(_values, rolled(2)), "STRIDE_LEGALITY", "VALUE_MAP", "value t is row t"),
    Corruption(
        "key channels shifted", _at(keys_edge, rolled(3)), "STRIDE_LEGALITY", "KEY_MAP", "channel c meets channel c"
    ),
    Corruption("value channels reversed", _at(_values, reversed_along(3)), "STRIDE_LEGALITY", "VALUE_MAP", "the same"),
    Corruption("values taken for keys", _rewired(keys_edge, lambda e: e.site.v), "CACHE_OPERANDS", None, STREAM),
    Corruption("keys taken for values", _rewired(_values, lambda e: e.site.k), "LATENT_KV", "UNTRACED", STREAM),
    Corruption("another layer's keys", _rewired(keys_edge, lambda e: e.sites[0].k), "CACHE_OPERANDS", None, STREAM),
    Corruption("another layer's values", _rewired(_values, lambda e: e.sites[0].v), "CACHE_OPERANDS", None, STREAM),
    Corruption("the past in place of the present", _rewired(keys_edge, _past_key), "CACHE_OPERANDS", None, STREAM),
    Corruption("the call's own values alone", _rewired(_values, _new_value), "CACHE_OPERANDS", None, STREAM),
    Corruption("new rows in front of the past", _new_rows_in_front, "CONCAT_FORM", "UNTRACED", STREAM),
    Corruption("new rows joined as heads", _joined_as_heads, "CONCAT_FORM", "UNTRACED", STREAM),
    Corruption(
        "a scale for each head", _at(_scores, times(PER_HEAD)), "SCORE_OP", "STEPS", "one factor for all scores"
    ),
    Corruption("a scale of the number of keys", _scaled_by_extent, "SCORE_OP", "STEPS", "alone, n is another number"),
    Corruption("keys scaled for each head", _at(_qk_keys, times(PER_HEAD)), "STRIDE_LEGALITY", "STEPS", "one factor"),
    Corruption(
        "weights rows reversed", _at(_weights, reversed_along(2)), "SCORE_OP", "OUTPUT_MAP", "rows in query order"
    ),
    Corruption(
        "weights columns reversed", _at(_weights, reversed_along(3)), "SCORE_OP", "WEIGHT_MAP", "p[t] weighs V[t]"
    ),
    Corruption(
        "weights of other heads", _at(_weights, reversed_along(1)), "SCORE_OP", "QUERY_MAP", "heads in head order"
    ),
    Corruption(
        "scores rows reversed", _at(_scores, reversed_along(2)), "SCORE_OP", "OUTPUT_MAP", "rows in query order"
    ),
    Corruption("scores in place of weights", _scores_as_weights, "KV_WITHOUT_SITE", None, "no softmax is left"),
    Corruption("another layer's weights", _other_weights, "KV_WITHOUT_SITE", None, "Q and K of another layer"),
    Corruption("two streams", _two_streams, "STREAMS", None, "streams must not be taken for queries"),
)

#: Of what torch's sdpa writes only: the transpose by way of three axes, the guard against NaN.
SDPA_CORRUPTIONS: tuple[Corruption, ...] = (
    Corruption(
        "keys reshaped in place of transposed", _untransposed, "STRIDE_LEGALITY", "KEY_MAP", "channel c meets c"
    ),
    Corruption("the guard keeps what is no number", _turned_guard, "SCORE_OP", "UNTRACED", "all weights become 0"),
    Corruption("the guard looks at the scores", _guard_of_scores, "SCORE_OP", "UNTRACED", "another tensor's NaN"),
)
