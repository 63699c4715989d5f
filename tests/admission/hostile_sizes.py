"""Small files that describe large things: tensors of petabytes, graphs that double at each node, long chains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import onnx
from hostile_case import (
    ADMITTED,
    ANY,
    REFUSED_SITE,
    REPORTED,
    Catalogue,
    Damage,
    constant,
    feed_through,
    insert_before,
    maker,
    node,
)
from onnx import TensorProto, helper

SIZES = Catalogue("sizes")
HUGE = 2**62

# --- values that are worked out of constants ------------------------------------------------------------------------


def bomb(model: onnx.ModelProto, *nodes: onnx.NodeProto, declare: bool = False) -> None:
    """Nodes whose last result is added to the mask. declare: the file says that every result has one element."""
    insert_before(model, "mask", *nodes)
    result = nodes[-1].output[0]
    if declare:
        for name in (output for entry in nodes for output in entry.output):
            model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]))
    model.graph.node.insert(
        list(model.graph.node).index(maker(model, "mask")), node("ReduceMax", [result], ["bomb"], keepdims=0)
    )
    model.graph.node.insert(
        list(model.graph.node).index(maker(model, "mask")), node("Cast", ["bomb"], ["bomb_float"], to=TensorProto.FLOAT)
    )
    feed_through(model, "l0.masked0", 1, node("Add", ["OLD", "bomb_float"], ["mask_and_bomb"]))


def _of_constants(name: str, op_type: str, operands: Sequence[tuple[object, str]], **attributes: object) -> None:
    """One operator over constants. Those that make a lot, once more with a lie about its size."""

    def made(model: onnx.ModelProto, declare: bool) -> None:
        names = [constant(model, f"operand{k}", value, dtype) for k, (value, dtype) in enumerate(operands)]
        bomb(model, node(op_type, names, ["made"], **attributes), declare=declare)

    SIZES.damaged(name, lambda model: made(model, False), REPORTED, ANY)
    if "peta" in name or "10_to" in name:
        SIZES.damaged(f"{name}_that_lies", lambda model: made(model, True), REPORTED)


_of_constants("constant_of_10_to_12", "ConstantOfShape", [([10**12], "int64")])
_of_constants("constant_of_5_gib", "ConstantOfShape", [([5 * 2**28], "int64")])
_of_constants("constant_below_0", "ConstantOfShape", [([-5, 7], "int64")])
_of_constants("constant_that_overflows", "ConstantOfShape", [([2**32, 2**32], "int64")])
_of_constants("range_of_10_to_15", "Range", [(0, "int64"), (10**15, "int64"), (1, "int64")])
_of_constants("range_with_step_0", "Range", [(0, "int64"), (10, "int64"), (0, "int64")])
_of_constants("range_with_a_step_of_nan", "Range", [(0.0, "float32"), (10.0, "float32"), (math.nan, "float32")])
_of_constants("range_to_infinity", "Range", [(0.0, "float32"), (math.inf, "float32"), (1.0, "float32")])
_of_constants("range_of_tiny_steps", "Range", [(0.0, "float64"), (1.0, "float64"), (1e-15, "float64")])
_of_constants("range_of_int16", "Range", [(0, "int16"), (30_000, "int16"), (1, "int16")])
_of_constants("expand_to_a_petabyte", "Expand", [([1.0], "float32"), ([2**25, 2**25], "int64")])
_of_constants("expand_to_1000_axes", "Expand", [([1.0], "float32"), ([1] * 1000, "int64")])
_of_constants("tile_to_a_petabyte", "Tile", [([1.0], "float32"), ([2**50], "int64")])
_of_constants("tile_below_0", "Tile", [([1.0], "float32"), ([-(2**40)], "int64")])
_of_constants("pad_to_a_petabyte", "Pad", [([1.0], "float32"), ([2**49, 2**49], "int64")])
_of_constants("pad_below_0", "Pad", [([1.0], "float32"), ([-(2**49), -(2**49)], "int64")])
_of_constants("identity_of_a_million_squared", "EyeLike", [(np.zeros((1, 1)), "float32")], dtype=1, k=HUGE)
_of_constants("power_tower", "Pow", [([10**18], "int64"), ([10**18], "int64")])
_of_constants("shift_by_2_to_62", "BitShift", [([1], "uint64"), ([HUGE], "uint64")], direction="LEFT")
_of_constants("one_hot_of_10_to_12", "OneHot", [([1], "int64"), (10**12, "int64"), ([0.0, 1.0], "float32")])
_of_constants("gather_far_outside", "Gather", [([1.0], "float32"), ([HUGE], "int64")])
_of_constants("slice_far_outside", "Slice", [([1.0], "float32"), ([-HUGE], "int64"), ([HUGE], "int64")])
_of_constants("scatter_far_outside", "ScatterND", [([1.0], "float32"), ([[HUGE]], "int64"), ([2.0], "float32")])
_of_constants("division_by_0_of_integers", "Div", [([1], "int64"), ([0], "int64")])
_of_constants("smallest_integer_by_minus_1", "Div", [([-(2**63)], "int64"), ([-1], "int64")])
_of_constants("remainder_of_the_smallest_integer", "Mod", [([-(2**63)], "int64"), ([-1], "int64")])
_of_constants("resize_to_a_petabyte", "Upsample", [([[1.0]], "float32"), ([1e9, 1e9], "float32")])


@SIZES.graph(REPORTED, ANY)
def _powers_of_powers(model: onnx.ModelProto) -> None:
    two = constant(model, "two", 2, "int64")
    nodes = [node("Pow", [two if level == 0 else f"p{level - 1}", two], [f"p{level}"]) for level in range(500)]
    bomb(model, *nodes)


@SIZES.graph(REFUSED_SITE, ANY)
def _a_tensor_doubled_60_times(model: onnx.ModelProto) -> None:
    start = constant(model, "start", [1.0] * 16, "float32")
    names = [start, *(f"d{level}" for level in range(60))]
    bomb(model, *(node("Concat", [old, old], [new], axis=0) for old, new in pairwise(names)))


@SIZES.graph(REFUSED_SITE)
def _a_tensor_doubled_60_times_in_secret(model: onnx.ModelProto) -> None:
    start = constant(model, "start", [1.0] * 16, "float32")
    names = [start, *(f"d{level}" for level in range(60))]
    nodes = [node("Concat", [old, old], [new], axis=0) for old, new in pairwise(names)]
    bomb(model, *nodes, declare=True)


@SIZES.graph(REFUSED_SITE)
def _nonzero_of_much(model: onnx.ModelProto) -> None:
    size = constant(model, "size", [2**19], "int64")
    one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    made = [node("ConstantOfShape", [size], ["ones"], value=one)]
    for level in range(20):
        made += [node("NonZero", ["ones"], [f"at{level}"]), node("CumSum", [f"at{level}", "axis"], [f"sum{level}"])]
    constant(model, "axis", 0, "int64")
    bomb(model, *made)


@SIZES.graph(REFUSED_SITE, ANY)
def _products_of_large_constants(model: onnx.ModelProto) -> None:
    """Seconds for each of 100 products, if anyone computes them ahead of the first call."""
    size = constant(model, "size", [4096, 4096], "int64")
    made = [node("ConstantOfShape", [size], ["m0"])]
    made += [node("MatMul", [f"m{k}", f"m{k}"], [f"m{k + 1}"]) for k in range(100)]
    bomb(model, *made)


@SIZES.graph(REFUSED_SITE, ANY)
def _a_convolution_of_constants(model: onnx.ModelProto) -> None:
    size, kernel = constant(model, "size", [1, 64, 512, 512], "int64"), constant(model, "kernel", [64, 64, 255, 255])
    made = [node("ConstantOfShape", [size], ["image"]), node("ConstantOfShape", [kernel], ["weights"])]
    bomb(model, *made, node("Conv", ["image", "weights"], ["convolved"]))


@SIZES.graph(REFUSED_SITE, ANY)
def _random_of_a_terabyte(model: onnx.ModelProto) -> None:
    bomb(model, node("RandomNormal", [], ["noise"], shape=[2**38]))


@SIZES.graph(REFUSED_SITE, ANY)
def _a_constant_that_is_a_terabyte_of_nothing(model: onnx.ModelProto) -> None:
    """Twenty constants of half a GiB."""
    size, made = constant(model, "size", [2**27], "int64"), []
    for number in range(20):
        made.append(node("ConstantOfShape", [size], [f"part{number}"]))
    bomb(model, *made, node("Sum", [f"part{number}" for number in range(20)], ["together"]))


# --- what is on the way from the cache to a product -----------------------------------------------------------------


def _on_the_keys(name: str, *nodes: onnx.NodeProto, constants: dict[str, object] | None = None) -> None:
    """Nodes between the repeated keys and their product; only the index map of the path is worked out there."""

    def damage(model: onnx.ModelProto) -> None:
        for key, value in (constants or {}).items():
            constant(model, key, value)
        feed_through(model, "l0.k_turned", 0, *[onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes])

    SIZES.damaged(name, damage, REFUSED_SITE)


_on_the_keys("keys_expanded", node("Expand", ["OLD", "to"], ["k1"]), constants={"to": [2**20, 2**20, 1, 1, 1, 1]})
_on_the_keys(
    "keys_expanded_and_cut",
    node("Expand", ["OLD", "to"], ["k1"]),
    node("Slice", ["k1", "zero", "one", "zero"], ["k2"]),
    node("Squeeze", ["k2", "zero"], ["k3"]),
    constants={"to": [2**40, 1, 1, 1, 1], "zero": [0], "one": [1]},
)
_on_the_keys(
    "keys_tiled_and_cut",
    node("Tile", ["OLD", "times"], ["k1"]),
    node("Slice", ["k1", "zero", "one", "zero"], ["k2"]),
    constants={"times": [2**40, 1, 1, 1], "zero": [0], "one": [1]},
)
_on_the_keys(
    "keys_joined_40_times",
    *(node("Concat", [f"k{level}" if level else "OLD"] * 2, [f"k{level + 1}"], axis=0) for level in range(40)),
    node("Slice", ["k40", "zero", "one", "zero"], ["cut"]),
    constants={"zero": [0], "one": [1]},
)
_on_the_keys(
    "keys_reshaped_by_a_range",
    node("Range", ["zero", "many", "one"], ["counted"]),
    node("Slice", ["counted", "first", "fourth"], ["target"]),
    node("Reshape", ["OLD", "target"], ["k1"]),
    constants={"zero": 0, "many": 10**12, "one": 1, "first": [0], "fourth": [4]},
)
_on_the_keys("keys_moved_100_times", *(
    node("Transpose", [f"k{level}" if level else "OLD"], [f"k{level + 1}"], perm=[0, 1, 3, 2]) for level in range(100)
))  # fmt: skip
_on_the_keys("keys_renamed_5000_times", *(
    node("Identity", [f"k{level}" if level else "OLD"], [f"k{level + 1}"]) for level in range(5000)
))  # fmt: skip


# --- graphs that double at each node ---------------------------------------------------------------------------------


def _doubling(op_type: str, start: str, name: str, levels: int = 200) -> list[onnx.NodeProto]:
    """Each node reads its predecessor twice: 2**levels ways through."""
    names = [start, *(f"{name}{level}" for level in range(levels))]
    return [node(op_type, [old, old], [new]) for old, new in pairwise(names)]


for _op in ("Add", "Mul", "Min", "Max", "Sub", "And", "Pow"):

    def _mask_doubled(model: onnx.ModelProto, op: str = _op) -> None:
        feed_through(model, "l0.masked0", 1, *_doubling(op, "OLD", "w"))

    SIZES.damaged(f"mask_{_op}_200_times", _mask_doubled, REPORTED)


def _indicator_doubled(op_type: str, levels: int) -> Damage:
    """What hides keys is Mul(indicator, large), its indicator made of an input that is neither mask nor constant."""

    def damage(model: onnx.ModelProto) -> None:
        shape = [1, 1, "queries", "other"]
        model.graph.input.append(helper.make_tensor_value_info("flags", TensorProto.BOOL, shape))
        large = constant(model, "large", -1e9, "float32")
        made = [node("Cast", ["flags"], ["OLD0"], to=TensorProto.FLOAT), *_doubling(op_type, "OLD0", "w", levels)]
        made.append(node("Mul", [made[-1].output[0], large], ["bias"]))
        insert_before(model, "l0.masked0", *made)
        maker(model, "l0.masked0").input[1] = "bias"

    return damage


for _op in ("Mul", "Min", "Max"):
    SIZES.damaged(f"indicator_{_op}_60_times", _indicator_doubled(_op, 60), REFUSED_SITE)
    SIZES.damaged(f"indicator_{_op}_200_times", _indicator_doubled(_op, 200), REFUSED_SITE)


@SIZES.graph(REFUSED_SITE)
def _indicator_concatenated(model: onnx.ModelProto) -> None:
    shape = [1, 1, "queries", "other"]
    model.graph.input.append(helper.make_tensor_value_info("flags", TensorProto.BOOL, shape))
    large = constant(model, "large", -1e9, "float32")
    made = [node("Cast", ["flags"], ["w0"], to=TensorProto.FLOAT)]
    made += [node("Concat", [f"w{k}", f"w{k}"], [f"w{k + 1}"], axis=-1) for k in range(60)]
    made.append(node("Mul", ["w60", large], ["bias"]))
    insert_before(model, "l0.masked0", *made)
    maker(model, "l0.masked0").input[1] = "bias"


@SIZES.graph(REFUSED_SITE)
def _mask_of_products_of_itself(model: onnx.ModelProto) -> None:
    """Mul asks both of its operands both questions."""
    shape = [1, 1, "queries", "other"]
    model.graph.input.append(helper.make_tensor_value_info("flags", TensorProto.BOOL, shape))
    large = constant(model, "large", -1e9, "float32")
    made = [node("Cast", ["flags"], ["i"], to=TensorProto.FLOAT), node("Mul", ["i", large], ["w0"])]
    for level in range(60):
        made.append(node("Add", [f"w{level}", f"w{level}"], [f"a{level}"]))
        made.append(node("Mul", [f"a{level}", "i"], [f"w{level + 1}"]))
    insert_before(model, "l0.masked0", *made)
    maker(model, "l0.masked0").input[1] = "w60"


for _place, _operand in (("l0.qk", 0), ("l0.k_turned", 0), ("l0.softmax", 0), ("l0.output", 0), ("logits", 0)):

    def _activation_doubled(model: onnx.ModelProto, place: str = _place, operand: int = _operand) -> None:
        feed_through(model, place, operand, *_doubling("Add", "OLD", "w"))

    SIZES.damaged(f"doubled_before_{_place}", _activation_doubled, REPORTED)


@SIZES.graph(REFUSED_SITE)
def _diamonds_of_scores(model: onnx.ModelProto) -> None:
    made = []
    for level in range(500):
        old = "OLD" if level == 0 else f"d{level - 1}"
        made += [node("Exp", [old], [f"a{level}"]), node("Neg", [old], [f"b{level}"])]
        made.append(node("Add", [f"a{level}", f"b{level}"], [f"d{level}"]))
    feed_through(model, "l0.softmax", 0, *made)


# --- many ------------------------------------------------------------------------------------------------------------


def _chain(op_type: str, count: int, start: str, **attributes: object) -> list[onnx.NodeProto]:
    names = [start, *(f"chain{k}" for k in range(count))]
    return [node(op_type, [old], [new], **attributes) for old, new in pairwise(names)]


@SIZES.graph()
def _a_chain_of_100_000(model: onnx.ModelProto) -> None:
    model.graph.node.extend(_chain("Neg", 100_000, "embedding"))


@SIZES.graph(REPORTED)
def _a_chain_of_29_000_that_differ(model: onnx.ModelProto) -> None:
    made = _chain("LeakyRelu", 29_000, "embedding")
    for number, entry in enumerate(made):
        entry.attribute.append(helper.make_attribute("alpha", 1.0 + number))
    model.graph.node.extend(made)


@SIZES.graph(ADMITTED)
def _8_000_softmaxes_of_no_attention(model: onnx.ModelProto) -> None:
    """Each is looked for products behind and before it."""
    made, last = [], "embedding"
    for k in range(8_000):
        made += [node("Add", [last, "embedding"], [f"a{k}"]), node("Softmax", [f"a{k}"], [f"s{k}"], axis=-1)]
        last = f"s{k}"
    model.graph.node.extend(made)


@SIZES.graph(REPORTED)
def _3_000_constants_that_differ(model: onnx.ModelProto) -> None:
    """Each is worked out by an evaluator of its own."""
    for number in range(3_000):
        model.graph.node.append(node("Constant", [], [f"k{number}"], value_int=number))
        model.graph.node.append(node("Clip", [f"k{number}"], [f"j{number}"], name=f"n{number}"))
        model.graph.node.append(node("Cast", [f"k{number}"], [f"i{number}"], to=1 + number % 3, saturate=number))


@SIZES.graph(REFUSED_SITE)
def _renamed_10_000_times(model: onnx.ModelProto) -> None:
    """The past itself is behind a long chain of names."""
    feed_through(model, "present.0.key", 0, *_chain("Identity", 10_000, "OLD"))


@SIZES.graph()
def _100_000_inputs(model: onnx.ModelProto) -> None:
    model.graph.input.extend(
        helper.make_tensor_value_info(f"in{k}", TensorProto.FLOAT, [1, 2, "past", 8]) for k in range(100_000)
    )


@SIZES.graph()
def _100_000_outputs(model: onnx.ModelProto) -> None:
    model.graph.node.append(
        node("Split", ["l0.flat"], [f"out{k}" for k in range(100_000)], axis=-1, num_outputs=100_000)
    )
    model.graph.output.extend(
        helper.make_tensor_value_info(f"out{k}", TensorProto.FLOAT, [1, "queries", 16]) for k in range(100_000)
    )


@SIZES.graph(REFUSED_SITE)
def _3_000_caches_in_one_concat(model: onnx.ModelProto) -> None:
    names = [f"past.{k}.more" for k in range(3000)]
    model.graph.input.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, "past", 8]) for name in names
    )
    maker(model, "present.0.key").input.extend(names)


@SIZES.graph(REFUSED_SITE)
def _3_000_caches(model: onnx.ModelProto) -> None:
    for k in range(3000):
        model.graph.input.append(helper.make_tensor_value_info(f"p{k}", TensorProto.FLOAT, [1, 2, "past", 8]))
        model.graph.node.append(node("Concat", [f"p{k}", "l0.new_key"], [f"q{k}"], axis=2))
        model.graph.output.append(
            helper.make_tensor_value_info(f"q{k}", TensorProto.FLOAT, [1, 2, "past + queries", 8])
        )


@SIZES.graph()
def _1_000_softmaxes_over_one_product(model: onnx.ModelProto) -> None:
    for k in range(1000):
        model.graph.node.append(node("Softmax", ["l0.masked0"], [f"s{k}"], axis=-1))
        model.graph.node.append(node("MatMul", [f"s{k}", "l0.v.all"], [f"o{k}"]))


@SIZES.graph(REFUSED_SITE)
def _200_attentions_in_a_row(model: onnx.ModelProto) -> None:
    before = "l0.q"
    for k in range(200):
        model.graph.node.append(node("MatMul", [before, "l0.k_turned"], [f"qk{k}"]))
        model.graph.node.append(node("Add", [f"qk{k}", "mask"], [f"masked{k}"]))
        model.graph.node.append(node("Softmax", [f"masked{k}"], [f"s{k}"], axis=-1))
        model.graph.node.append(node("MatMul", [f"s{k}", "l0.v.all"], [f"o{k}"]))
        before = f"o{k}"


@SIZES.graph(ADMITTED)
def _a_node_with_100_000_operands(model: onnx.ModelProto) -> None:
    model.graph.node.append(node("Concat", ["embedding"] * 100_000, ["joined"], axis=1))


@SIZES.graph(ADMITTED)
def _a_node_with_20_000_attributes(model: onnx.ModelProto) -> None:
    found = maker(model, "l0.softmax")
    found.attribute.extend(helper.make_attribute(f"a{k}", k) for k in range(20_000))


@SIZES.graph(ADMITTED)
def _a_tangle_of_3_000(model: onnx.ModelProto) -> None:
    """Every node reads the ten before it."""
    names = ["embedding"] * 10
    for k in range(3000):
        model.graph.node.append(node("Sum", names[-10:], [f"t{k}"]))
        names.append(f"t{k}")
