"""Tensors, types, shapes and attributes that are not what their readers take for granted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import onnx
from hostile_case import (
    ADMITTED,
    ANY,
    REFUSED,
    REFUSED_SITE,
    REPORTED,
    Catalogue,
    Codes,
    Damage,
    constant,
    declared,
    feed_through,
    initializer,
    insert_before,
    maker,
    node,
)
from onnx import AttributeProto, TensorProto, helper

VALUES = Catalogue("values")
HUGE = 2**62

# --- declared shapes -----------------------------------------------------------------------------------------------


def _dim(tensor: str, axis: int, size: int) -> Damage:
    return lambda model: setattr(declared(model, tensor).type.tensor_type.shape.dim[axis], "dim_value", size)


for _tensor, _axis in (
    *(("past.0.key", 0), ("past.0.key", 1), ("past.0.key", 2), ("past.0.key", 3), ("past.0.value", 3)),
    *(("input_ids", 0), ("input_ids", 1), ("attention_mask", 0), ("attention_mask", 1), ("logits", 2)),
    *(("l0.q", 1), ("l0.k.all", 1), ("present.0.key", 1)),
):
    for _size in (0, -1, HUGE):
        VALUES.damaged(f"{_tensor}_of_{_size}_along_{_axis}", _dim(_tensor, _axis, _size), REPORTED)


def _every_dim(size: int) -> Damage:
    def damage(model: onnx.ModelProto) -> None:
        for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                dim.dim_value = size

    return damage


for _size in (0, 1, -1, 2**31, HUGE):
    VALUES.damaged(f"every_dimension_is_{_size}", _every_dim(_size), REFUSED_SITE, ANY)


def _rank(tensor: str, rank: int | None) -> Damage:
    def damage(model: onnx.ModelProto) -> None:
        stated = declared(model, tensor).type.tensor_type
        stated.ClearField("shape")
        if rank is not None:
            stated.shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=1) for _ in range(rank))
            stated.shape.SetInParent()

    return damage


for _tensor in ("past.0.key", "input_ids", "attention_mask", "logits", "l0.q"):
    for _count in (None, 0, 1, 100):
        VALUES.damaged(f"{_tensor}_of_rank_{_count}", _rank(_tensor, _count), REPORTED)


def _type(tensor: str, elem_type: int) -> Damage:
    return lambda model: setattr(declared(model, tensor).type.tensor_type, "elem_type", elem_type)


for _tensor in ("past.0.key", "input_ids", "attention_mask", "logits"):
    for _name in ("UNDEFINED", "STRING", "COMPLEX128", "FLOAT8E4M3FN", "INT4", "BFLOAT16", "BOOL"):
        VALUES.damaged(f"{_tensor}_of_type_{_name}", _type(_tensor, TensorProto.DataType.Value(_name)), REPORTED)
    VALUES.damaged(f"{_tensor}_of_type_99", _type(_tensor, 99))


@VALUES.graph(REFUSED_SITE)
def _inputs_that_are_sequences(model: onnx.ModelProto) -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [1]))
    declared(model, "past.0.key").type.CopyFrom(kind)


@VALUES.graph(REFUSED_SITE)
def _inputs_without_a_type(model: onnx.ModelProto) -> None:
    for value in model.graph.input:
        value.ClearField("type")


# --- initializers --------------------------------------------------------------------------------------------------


def _damaged_tensor(tensor: str, change: Callable[[TensorProto], None]) -> Damage:
    return lambda model: change(initializer(model, tensor))


def _dims(*dims: int) -> Callable[[TensorProto], None]:
    def change(tensor: TensorProto) -> None:
        tensor.dims[:] = dims

    return change


def _typed(elem_type: int) -> Callable[[TensorProto], None]:
    return lambda tensor: setattr(tensor, "data_type", elem_type)


def _raw(data: bytes) -> Callable[[TensorProto], None]:
    return lambda tensor: setattr(tensor, "raw_data", data)


# c0 is the embedding, c4 the mask's zero, c11 a reshape's target of four integers.
for _tensor in ("c0", "c4", "c11"):
    for _name, _change in {
        "dims_of_0": _dims(0),
        "dims_below_0": _dims(-4, -8),
        "huge_dims": _dims(HUGE),
        "dims_that_overflow": _dims(2**32, 2**32, 2**32),
        "a_thousand_dims": _dims(*[1] * 1000),
        "too_little_data": _raw(b"\0"),
        "no_data": _raw(b""),
        "too_much_data": _raw(bytes(10**6)),
        "nan": _raw(np.full(1024, math.nan, np.float32).tobytes()),
        "type_0": _typed(0),
        "type_99": _typed(99),
        "type_below_0": _typed(-1),
        "strings": _typed(TensorProto.STRING),
        "float8": _typed(TensorProto.FLOAT8E4M3FN),
        "int4": _typed(TensorProto.INT4),
        "bfloat16": _typed(TensorProto.BFLOAT16),
        "bool": _typed(TensorProto.BOOL),
        "a_segment": lambda tensor: tensor.segment.MergeFrom(TensorProto.Segment(begin=0, end=HUGE)),
        "no_name": lambda tensor: tensor.ClearField("name"),
    }.items():
        VALUES.damaged(f"{_tensor}_with_{_name}", _damaged_tensor(_tensor, _change))


@VALUES.graph(ADMITTED, ANY)
def _two_kinds_of_data(model: onnx.ModelProto) -> None:
    initializer(model, "c0").float_data.extend([1.0] * 8)


def _reshape_to(target: Iterable[float], dtype: str = "int64") -> Damage:
    def damage(model: onnx.ModelProto) -> None:
        for reader in ("l0.k.all", "l0.q.split"):
            maker(model, reader).input[1] = constant(model, f"{reader}_to", list(target), dtype)

    return damage


for _name, _target, _dtype in (
    *(("huge", [HUGE, HUGE, HUGE], "int64"), ("below_0", [-1, -1, -1, -1], "int64"), ("zero", [0] * 9, "int64")),
    *(("nan", [math.nan] * 4, "float32"), ("inf", [math.inf] * 4, "float64"), ("bools", [1, 0, 1], "bool")),
    *(("nothing", [], "int64"), ("a_thousand", [1] * 1000, "int64")),
):
    VALUES.damaged(f"reshape_to_{_name}", _reshape_to(_target, _dtype), REFUSED_SITE, ANY if _name == "huge" else None)


@VALUES.graph(REPORTED)
def _head_reshaped_to_nan(model: onnx.ModelProto) -> None:
    """The weights behind the logits are a Reshape to numbers that are none."""
    target = constant(model, "nan", [math.nan, math.inf], "float32")
    feed_through(model, "logits", 1, node("Reshape", ["OLD", target], ["head"]))


@VALUES.graph(REPORTED, ANY)
def _head_reshaped_to_words(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(helper.make_tensor("words", TensorProto.STRING, [2], [b"one", b"\xff"]))
    feed_through(model, "logits", 1, node("Reshape", ["OLD", "words"], ["head"]))


@VALUES.graph(REFUSED_SITE)
def _table_reshaped_to_nan(model: onnx.ModelProto) -> None:
    target = constant(model, "nan", [math.nan, math.inf], "float32")
    feed_through(model, "embedding", 0, node("Reshape", ["OLD", target], ["table"]))


def _scale(value: float) -> Damage:
    return lambda model: initializer(model, "c18").CopyFrom(helper.make_tensor("c18", 1, [], [value]))


for _name, _value in {"nan": math.nan, "inf": math.inf, "0": 0.0, "below_0": -1.0}.items():
    VALUES.damaged(f"a_scale_of_{_name}", _scale(_value), REPORTED, REPORTED)


@VALUES.graph(REFUSED_SITE, REPORTED)
def _division_by_zero(model: onnx.ModelProto) -> None:
    zero = constant(model, "zero", 0.0, "float32")
    feed_through(model, "l0.masked0", 0, node("Div", ["OLD", zero], ["divided"]))


@VALUES.graph(REFUSED_SITE, ANY)
def _sparse_initializers(model: onnx.ModelProto) -> None:
    values = helper.make_tensor("sparse", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    indices = helper.make_tensor("", TensorProto.INT64, [3], [-1, HUGE, 7])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [HUGE]))
    feed_through(model, "l0.masked0", 0, node("Add", ["OLD", "sparse"], ["with_sparse"]))


@VALUES.graph(REFUSED_SITE, ANY)
def _a_sparse_initializer_of_a_terabyte(model: onnx.ModelProto) -> None:
    """ONNX Runtime makes it dense."""
    values = helper.make_tensor("sparse", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("", TensorProto.INT64, [1], [7])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2**38]))
    feed_through(model, "l0.masked0", 0, node("Add", ["OLD", "sparse"], ["with_sparse"]))


@VALUES.graph(ADMITTED, ANY)
def _quantization_annotations(model: onnx.ModelProto) -> None:
    for number in range(1000):
        entry = model.graph.quantization_annotation.add(tensor_name=f"\x1b[2J{number}")
        entry.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="nobody")


@VALUES.graph(ADMITTED, ANY)
def _training_info(model: onnx.ModelProto) -> None:
    info = model.training_info.add()
    info.algorithm.node.append(node("Frobnicate", ["nobody"], ["update"]))
    info.update_binding.add(key="c6", value="update")


@VALUES.graph(REFUSED_SITE, REFUSED_SITE)
def _notes_without_a_meaning(model: onnx.ModelProto) -> None:
    """One of them is ours, and says that this is a branch of a merged decoder."""
    model.metadata_props.add(key="qbpass.branch", value="\x1b[2J")
    model.metadata_props.add(key="a" * 2**20, value="\n" * 2**20)
    for number in range(20_000):
        model.metadata_props.add(key=str(number), value="")


@VALUES.graph(REPORTED, REPORTED)
def _a_graph_that_says_it_is_frozen(model: onnx.ModelProto) -> None:
    for key, value in (("frozen", "\x1b[2J\n9.9"), ("source", "zz"), ("provider", "cpu")):
        model.metadata_props.add(key=f"qbpass.{key}", value=value)


# --- attributes ----------------------------------------------------------------------------------------------------


def _attribute(output: str, name: str, value: object | None) -> Damage:
    """None takes the attribute away."""

    def damage(model: onnx.ModelProto) -> None:
        found = maker(model, output)
        kept = [entry for entry in found.attribute if entry.name != name]
        del found.attribute[:]
        found.attribute.extend(kept)
        if value is not None:
            found.attribute.append(helper.make_attribute(name, value))

    return damage


_ODD: dict[str, object] = {
    "nothing": None,
    "99": 99,
    "below_0": -99,
    "2_to_62": HUGE,
    "text": "axis",
    "nan": math.nan,
    "floats": [0.5, math.inf],
    "twice_0": [0, 0, 0, 0],
    "a_graph": helper.make_graph([], "empty", [], []),
    "a_tensor": helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0]),
}


def _odd_codes(kind: str, name: str, required: bool) -> Codes:
    """Numbers out of range are their reader's business; another type than the operator's is a damaged file."""
    fitting = ("99", "below_0", "2_to_62") if kind == "integer" else ("twice_0",)
    return REPORTED if name in fitting or (name == "nothing" and not required) else REFUSED


for _output, _attr, _kind, _required in (
    *(("l0.softmax", "axis", "integer", False), ("present.0.key", "axis", "integer", True)),
    *(("l0.k_turned", "perm", "integers", False), ("n_keys", "start", "integer", False)),
    ("padding", "to", "integer", True),
):
    for _name, _value in _ODD.items():
        _codes = _odd_codes(_kind, _name, _required)
        VALUES.damaged(f"{_attr}_of_{_output}_is_{_name}", _attribute(_output, _attr, _value), _codes)


def _fused(name: str, value: object) -> Damage:
    def damage(model: onnx.ModelProto) -> None:
        qk = maker(model, "l0.qk")
        qk.op_type, qk.domain = "FusedMatMul", "com.microsoft"
        av = maker(model, "l0.output")
        av.op_type, av.domain = "FusedMatMul", "com.microsoft"
        for entry in (qk, av):
            entry.attribute.append(helper.make_attribute(name, value))

    return damage


for _attr, _fitting in (("alpha", "nan"), ("transA", "2_to_62"), ("transB", "2_to_62"), ("transBatchA", "2_to_62")):
    for _name, _value in {"text": "x", "nan": math.nan, "2_to_62": HUGE, "list": [1, 2]}.items():
        VALUES.damaged(f"fused_{_attr}_is_{_name}", _fused(_attr, _value), REPORTED if _name == _fitting else REFUSED)


@VALUES.graph()
def _attributes_of_no_type(model: onnx.ModelProto) -> None:
    for entry in model.graph.node:
        for attribute in entry.attribute:
            attribute.type = AttributeProto.UNDEFINED


@VALUES.graph()
def _attributes_of_another_type_than_they_say(model: onnx.ModelProto) -> None:
    for entry in model.graph.node:
        for attribute in entry.attribute:
            attribute.type = AttributeProto.TENSORS if attribute.type == AttributeProto.INT else AttributeProto.INT


@VALUES.graph()
def _attributes_without_names(model: onnx.ModelProto) -> None:
    for entry in model.graph.node:
        for attribute in entry.attribute:
            attribute.ClearField("name")


@VALUES.graph(REPORTED)
def _attributes_a_thousand_times(model: onnx.ModelProto) -> None:
    for output in ("l0.softmax", "present.0.key", "l0.k_turned"):
        found = maker(model, output)
        found.attribute.extend([found.attribute[0]] * 1000)


def _gqa(**attributes: object) -> Damage:
    def damage(model: onnx.ModelProto) -> None:
        flat = ["l0.q.flat", "l0.new_key.flat", "l0.new_value.flat", "past.0.key", "past.0.value"]
        made = node("GroupQueryAttention", flat, ["gqa", "gqa_key", "gqa_value"], domain="com.microsoft", **attributes)
        insert_before(model, "l0.projected", made)
        maker(model, "l0.projected").input[0] = "gqa"

    return damage


for _name, _attributes in {
    "no_heads": {},
    "heads_of_0": {"num_heads": 0, "kv_num_heads": 0},
    "heads_below_0": {"num_heads": -4, "kv_num_heads": -2},
    "huge_heads": {"num_heads": HUGE, "kv_num_heads": HUGE},
    "heads_of_text": {"num_heads": "four", "kv_num_heads": [2, 2]},
    "nan_scale": {"num_heads": 4, "kv_num_heads": 2, "scale": math.nan, "softcap": math.inf},
    "huge_window": {"num_heads": 4, "kv_num_heads": 2, "local_window_size": -HUGE},
}.items():
    VALUES.damaged(f"gqa_with_{_name}", _gqa(**_attributes), REFUSED_SITE)


@VALUES.graph(REFUSED_SITE)
def _constants_of_every_kind(model: onnx.ModelProto) -> None:
    """Constants of kinds that have no place in a decoder, where numbers are read."""
    tensor = helper.make_tensor("t", TensorProto.STRING, [2], [b"a", b"\xff\xfe"])
    kinds: dict[str, dict[str, object]] = {
        "of_strings": {"value_strings": ["a", "b"]},
        "of_a_string": {"value_string": "a"},
        "of_nothing": {},
        "of_a_string_tensor": {"value": tensor},
        "of_floats": {"value_floats": [math.nan] * 3},
    }
    for name, attributes in kinds.items():
        model.graph.node.insert(0, node("Constant", [], [name], **attributes))
        feed_through(model, "l0.masked0", 0, node("Mul", ["OLD", name], [f"times_{name}"]))
        feed_through(model, "mask", 1, node("Mul", ["OLD", name], [f"mask_{name}"]))


@VALUES.graph()
def _a_constant_of_a_graph(model: onnx.ModelProto) -> None:
    model.graph.node.insert(0, node("Constant", [], ["odd"], value=helper.make_graph([], "g", [], [])))


@VALUES.graph()
def _a_constant_whose_data_its_shape_does_not_need(model: onnx.ModelProto) -> None:
    tensor = helper.make_tensor("t", TensorProto.FLOAT, [2], [1.0, 2.0])
    tensor.dims[:] = [HUGE]
    model.graph.node.insert(0, node("Constant", [], ["broken"], value=tensor))
    feed_through(model, "l0.masked0", 1, node("Mul", ["OLD", "broken"], ["broken_mask"]))
