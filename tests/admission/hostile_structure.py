"""Graphs put together wrongly: cycles, missing and doubled tensors, bodies, functions, names, operator sets."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from hostile_case import (
    ADMITTED,
    ANY,
    REFUSED,
    REFUSED_SITE,
    Catalogue,
    Damage,
    constant,
    declared,
    feed_through,
    insert_before,
    maker,
    node,
)
from onnx import TensorProto, helper

GRAPHS = Catalogue("graphs")
FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL


def value(name: str, elem_type: int = FLOAT, shape: Sequence[int | str] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, shape)


# --- wiring ------------------------------------------------------------------------------------------------------


@GRAPHS.graph()
def _cycle(model: onnx.ModelProto) -> None:
    maker(model, "embedding").input[1] = "logits"


@GRAPHS.graph()
def _self_loop(model: onnx.ModelProto) -> None:
    maker(model, "l0.softmax").input[0] = "l0.softmax"


@GRAPHS.graph()
def _reversed(model: onnx.ModelProto) -> None:
    nodes = [onnx.NodeProto.FromString(entry.SerializeToString()) for entry in model.graph.node][::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


@GRAPHS.graph()
def _output_made_twice(model: onnx.ModelProto) -> None:
    model.graph.node.append(node("Identity", ["embedding"], ["logits"]))


@GRAPHS.graph()
def _output_twice_of_one_node(model: onnx.ModelProto) -> None:
    model.graph.node.append(node("Split", ["embedding"], ["half", "half"], axis=-1, num_outputs=2))


@GRAPHS.graph()
def _input_made_by_a_node(model: onnx.ModelProto) -> None:
    model.graph.node.append(node("Identity", ["embedding"], ["past.0.key"]))


@GRAPHS.graph()
def _initializer_made_by_a_node(model: onnx.ModelProto) -> None:
    model.graph.node.append(node("Identity", ["embedding"], ["c6"]))


@GRAPHS.graph()
def _input_twice(model: onnx.ModelProto) -> None:
    model.graph.input.append(value("past.0.key", FLOAT, [1, 3, "past", 8]))


@GRAPHS.graph()
def _output_twice(model: onnx.ModelProto) -> None:
    model.graph.output.append(value("logits"))


@GRAPHS.graph()
def _initializer_twice(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(helper.make_tensor("c6", FLOAT, [1], [1.0]))


@GRAPHS.graph()
def _missing_input(model: onnx.ModelProto) -> None:
    del model.graph.input[2]


@GRAPHS.graph(REFUSED_SITE, REFUSED_SITE)
def _no_inputs_read(model: onnx.ModelProto) -> None:
    """Every input becomes a constant."""
    for name, shape in (("input_ids", [1, 2]), ("attention_mask", [1, 2])):
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, shape, [1, 1]))
    for name in ("past.0.key", "past.0.value"):
        model.graph.initializer.append(helper.make_tensor(name, FLOAT, [1, 2, 1, 8], [0.5] * 16))


@GRAPHS.graph()
def _dangling_output(model: onnx.ModelProto) -> None:
    model.graph.output.append(value("nobody", FLOAT, [1]))


@GRAPHS.graph(REFUSED_SITE, ANY)
def _no_outputs(model: onnx.ModelProto) -> None:
    del model.graph.output[:]


@GRAPHS.graph(REFUSED_SITE, REFUSED_SITE)
def _an_input_is_an_output(model: onnx.ModelProto) -> None:
    del model.graph.output[:]
    model.graph.output.append(declared(model, "past.0.key"))


@GRAPHS.graph(REFUSED_SITE, ANY)
def _empty_output_names(model: onnx.ModelProto) -> None:
    model.graph.node.append(node("Softmax", ["l0.masked0"], [""]))
    model.graph.node.append(node("Split", ["embedding"], ["", ""], axis=-1, num_outputs=2))


@GRAPHS.graph()
def _a_softmax_without_a_result(model: onnx.ModelProto) -> None:
    model.graph.node.append(node("Softmax", ["l0.masked0"], []))


@GRAPHS.graph(REFUSED_SITE)
def _a_cache_update_that_gives_out_nothing(model: onnx.ModelProto) -> None:
    model.graph.node.append(node("Concat", ["past.0.key", "l0.new_key"], [""], axis=2))


def _operands(output: str, operands: Sequence[str]) -> Damage:
    def damage(model: onnx.ModelProto) -> None:
        maker(model, output).input[:] = operands

    return damage


for _output in ("l0.qk", "l0.softmax", "l0.output", "present.0.key", "mask", "l0.k.copies", "embedding", "logits"):
    GRAPHS.damaged(f"no_operands_of_{_output}", _operands(_output, []))
    # Concat takes any number; an operand that is left out has no value, wherever it is.
    GRAPHS.damaged(f"empty_operands_of_{_output}", _operands(_output, ["", "", ""]), REFUSED | REFUSED_SITE)
    GRAPHS.damaged(f"a_hundred_operands_of_{_output}", _operands(_output, ["embedding"] * 100), REFUSED | REFUSED_SITE)

# --- operators and operator sets -----------------------------------------------------------------------------------


def _renamed(output: str, op_type: str, domain: str, keep: int = 9) -> Damage:
    def damage(model: onnx.ModelProto) -> None:
        found = maker(model, output)
        found.op_type, found.domain = op_type, domain
        del found.input[keep:]
        if domain:
            model.opset_import.append(helper.make_opsetid(domain, 1))

    return damage


_STRANGE, _MICROSOFT = "nobody.knows", "com.microsoft"
# Their operands are what they say: an attention is refused as one, what is unknown stands in an attention's way.
for _op, _domain, _keep in (
    *(("Frobnicate", "", 9), ("Frobnicate", _STRANGE, 9), ("", "", 9), ("Constant", _STRANGE, 0)),
    *(("GroupQueryAttention", _MICROSOFT, 0), ("MultiHeadAttention", _MICROSOFT, 0)),
    *(("PackedMultiHeadAttention", _MICROSOFT, 0), ("SparseAttention", _MICROSOFT, 0)),
    ("PagedAttention", _MICROSOFT, 0),
):
    GRAPHS.damaged(f"{_domain}.{_op}_in_place_of_a_softmax", _renamed("l0.softmax", _op, _domain, _keep), REFUSED_SITE)
    GRAPHS.damaged(f"{_domain}.{_op}_in_place_of_a_product", _renamed("l0.output", _op, _domain, _keep), REFUSED_SITE)
# Searches read operands of these by number.
for _op, _domain, _keep in (
    *(("Softmax", _STRANGE, 0), ("MatMul", _STRANGE, 0), ("Gemm", _STRANGE, 1), ("Concat", _STRANGE, 0)),
    *(("Where", _STRANGE, 0), ("Gather", _STRANGE, 1), ("DynamicQuantizeLinear", _STRANGE, 0), ("Shape", _STRANGE, 0)),
    *(("If", _STRANGE, 0), ("Loop", _STRANGE, 0), ("Attention", _STRANGE, 0), ("Attention", _MICROSOFT, 0)),
    *(("FusedMatMul", _MICROSOFT, 0), ("FusedMatMul", _MICROSOFT, 1), ("LinearAttention", _MICROSOFT, 0)),
    *(("BiasSoftmax", _MICROSOFT, 0), ("MatMulNBits", _MICROSOFT, 0), ("DynamicQuantizeMatMul", _MICROSOFT, 0)),
    *(("SkipLayerNormalization", _MICROSOFT, 0), ("GatherBlockQuantized", _MICROSOFT, 1)),
    *(("EmbedLayerNormalization", _MICROSOFT, 0), ("QLinearSoftmax", _MICROSOFT, 0), ("Einsum", "", 0)),
):
    for _output in ("l0.softmax", "embedding"):
        GRAPHS.damaged(f"{_domain}.{_op}_of_{_keep}_for_{_output}", _renamed(_output, _op, _domain, _keep))


def _opset(version: int | None, domain: str = "") -> Damage:
    def damage(model: onnx.ModelProto) -> None:
        del model.opset_import[:]
        if version is not None:
            model.opset_import.append(helper.make_opsetid(domain, version))

    return damage


GRAPHS.damaged("no_operator_sets", _opset(None))
GRAPHS.damaged("operator_set_0", _opset(0))
GRAPHS.damaged("operator_set_below_0", _opset(-1))
GRAPHS.damaged("operator_set_1", _opset(1))
GRAPHS.damaged("operator_set_a_billion", _opset(10**9), ADMITTED, ANY)
GRAPHS.damaged("operator_set_of_another_domain", _opset(18, "nobody.knows"))


@GRAPHS.graph()
def _operator_set_twice(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("ai.onnx", 1))
    model.opset_import.append(helper.make_opsetid("", 7))


@GRAPHS.graph(ADMITTED, ANY)
def _ir_version_0(model: onnx.ModelProto) -> None:
    model.ir_version = 0


@GRAPHS.graph(ADMITTED, ANY)
def _ir_version_a_million(model: onnx.ModelProto) -> None:
    model.ir_version = 10**6


# --- bodies ------------------------------------------------------------------------------------------------------


def _body(nodes: Sequence[onnx.NodeProto], output: str, inputs: Sequence[str] = ()) -> onnx.GraphProto:
    return helper.make_graph(nodes, "body", [value(name) for name in inputs], [value(output)])


def _if(condition: str, outputs: Sequence[str], body: onnx.GraphProto) -> onnx.NodeProto:
    return node("If", [condition], outputs, then_branch=body, else_branch=body)


@GRAPHS.graph()
def _if_without_branches(model: onnx.ModelProto) -> None:
    condition = constant(model, "condition", True, "bool")
    model.graph.node.append(node("If", [condition], ["chosen"]))


@GRAPHS.graph()
def _if_with_branches_in_a_list(model: onnx.ModelProto) -> None:
    """Attention is inside, and what chooses is an input: a merged decoder whose branches have no names."""
    model.graph.input.append(value("use_cache", BOOL, [1]))
    body = _body([node("Softmax", ["l0.masked0"], ["inner"])], "inner")
    chooser = node("If", ["use_cache"], ["chosen"])
    chooser.attribute.append(helper.make_attribute("branches", [body, body]))
    model.graph.node.append(chooser)


@GRAPHS.graph(REFUSED_SITE, ANY)
def _if_with_a_branch_of_nothing(model: onnx.ModelProto) -> None:
    model.graph.input.append(value("use_cache", BOOL, [1]))
    full = _body([node("Softmax", ["l0.masked0"], ["inner"])], "inner")
    chooser = node("If", ["use_cache"], ["chosen"], then_branch=full, else_branch=onnx.GraphProto())
    model.graph.node.append(chooser)


@GRAPHS.graph()
def _body_that_reads_itself(model: onnx.ModelProto) -> None:
    condition = constant(model, "condition", True, "bool")
    body = _body([node("Neg", ["chosen"], ["inner"])], "inner")
    model.graph.node.append(_if(condition, ["chosen"], body))


@GRAPHS.graph()
def _body_that_makes_its_captured_tensor_again(model: onnx.ModelProto) -> None:
    condition = constant(model, "condition", True, "bool")
    body = _body([node("Neg", ["embedding"], ["embedding"])], "embedding")
    model.graph.node.append(_if(condition, ["chosen"], body))


def nested(levels: int, innermost: onnx.NodeProto) -> onnx.NodeProto:
    """An If in the first branch of an If, ..."""
    found, other = innermost, _body([node("Neg", ["embedding"], ["other"])], "other")
    for level in range(levels):
        body = _body([found], found.output[0])
        found = node("If", ["condition"], [f"nested{level}"], then_branch=body, else_branch=other)
    return found


@GRAPHS.graph(ADMITTED, ANY)
def _bodies_25_deep(model: onnx.ModelProto) -> None:
    constant(model, "condition", True, "bool")
    model.graph.node.append(nested(25, node("Neg", ["embedding"], ["innermost"])))


@GRAPHS.graph(REFUSED_SITE, ANY)
def _a_softmax_25_bodies_deep(model: onnx.ModelProto) -> None:
    model.graph.input.append(value("condition", BOOL, [1]))
    model.graph.node.append(nested(25, node("Softmax", ["embedding"], ["innermost"])))


@GRAPHS.graph()
def _two_to_the_12_bodies(model: onnx.ModelProto) -> None:
    """Both branches of an If hold an If, 12 times over."""
    constant(model, "condition", True, "bool")
    found = node("Neg", ["embedding"], ["innermost"])
    for level in range(12):
        found = _if("condition", [f"nested{level}"], _body([found], found.output[0]))
    model.graph.node.append(found)


@GRAPHS.graph()
def _ten_thousand_bodies(model: onnx.ModelProto) -> None:
    constant(model, "condition", True, "bool")
    body = _body([node("Neg", ["embedding"], ["inner"])], "inner")
    model.graph.node.extend(_if("condition", [f"chosen{number}"], body) for number in range(10_000))


@GRAPHS.graph(REFUSED_SITE, ANY)
def _loop_without_end(model: onnx.ModelProto) -> None:
    """A constant Loop: 2**62 rounds if anyone runs it."""
    rounds, going = constant(model, "rounds", 2**62), constant(model, "going", True, "bool")
    start = constant(model, "start", 0.0, "float32")
    body = helper.make_graph(
        [node("Identity", ["on"], ["on_again"]), node("Neg", ["held"], ["held_again"])],
        "body",
        [value("round", TensorProto.INT64, []), value("on", BOOL, []), value("held", FLOAT, [])],
        [value("on_again", BOOL, []), value("held_again", FLOAT, [])],
    )
    insert_before(model, "mask", node("Loop", [rounds, going, start], ["looped"], body=body))
    maker(model, "mask").input[1] = "looped"


@GRAPHS.graph(REFUSED_SITE, ANY)
def _scan_that_captures_the_cache(model: onnx.ModelProto) -> None:
    body = _body([node("MatMul", ["x", "present.0.key"], ["inner"])], "inner", ["x"])
    model.graph.node.append(node("Scan", ["present.0.value"], ["scanned"], body=body, num_scan_inputs=1))


# --- functions ---------------------------------------------------------------------------------------------------


def _function(model: onnx.ModelProto, name: str, body: Sequence[onnx.NodeProto], domain: str = "own") -> None:
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    model.functions.append(helper.make_function(domain, name, ["x"], ["y"], body, imports))
    if all(entry.domain != domain for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(domain, 1))


def _call(name: str, operand: str = "x", output: str = "y", domain: str = "own") -> onnx.NodeProto:
    return node(name, [operand], [output], domain=domain)


@GRAPHS.graph()
def _function_that_calls_itself(model: onnx.ModelProto) -> None:
    _function(model, "F", [_call("F")])
    model.graph.node.append(_call("F", "embedding", "called"))


@GRAPHS.graph()
def _functions_that_call_each_other(model: onnx.ModelProto) -> None:
    _function(model, "F", [_call("G")])
    _function(model, "G", [_call("F")])
    model.graph.node.append(_call("F", "embedding", "called"))


@GRAPHS.graph()
def _function_that_calls_itself_in_a_body(model: onnx.ModelProto) -> None:
    body = _body([_call("F", "x", "inner")], "inner")
    made = helper.make_tensor("true", BOOL, [], [True])
    _function(model, "F", [node("Constant", [], ["yes"], value=made), _if("yes", ["y"], body)])
    model.graph.node.append(_call("F", "embedding", "called"))


@GRAPHS.graph()
def _function_that_is_never_called_calls_itself(model: onnx.ModelProto) -> None:
    _function(model, "F", [_call("F")])


@GRAPHS.graph()
def _functions_200_deep(model: onnx.ModelProto) -> None:
    _function(model, "F0", [node("Neg", ["x"], ["y"])])
    for level in range(200):
        _function(model, f"F{level + 1}", [_call(f"F{level}")])
    model.graph.node.append(_call("F200", "embedding", "called"))


def _doubling(levels: int) -> Damage:
    def damage(model: onnx.ModelProto) -> None:
        _function(model, "F0", [node("Neg", ["x"], ["y"])])
        for level in range(levels):
            twice = [_call(f"F{level}", "x", "between"), _call(f"F{level}", "between", "y")]
            _function(model, f"F{level + 1}", twice)
        model.graph.node.append(_call(f"F{levels}", "embedding", "called"))

    return damage


GRAPHS.damaged("functions_of_2_to_the_12_nodes", _doubling(12), ADMITTED)
GRAPHS.damaged("functions_of_2_to_the_15_nodes", _doubling(15))
GRAPHS.damaged("functions_of_2_to_the_19_nodes", _doubling(19))
GRAPHS.damaged("functions_of_2_to_the_60_nodes", _doubling(60))


@GRAPHS.graph(REFUSED_SITE, ANY)
def _function_in_place_of_an_operator(model: onnx.ModelProto) -> None:
    model.functions.append(
        helper.make_function("", "Softmax", ["x"], ["y"], [node("Neg", ["x"], ["y"])], [helper.make_opsetid("", 18)])
    )


@GRAPHS.graph()
def _function_that_is_unsorted(model: onnx.ModelProto) -> None:
    _function(model, "F", [node("Neg", ["between"], ["y"]), node("Neg", ["x"], ["between"])])
    feed_through(model, "l0.qk", 0, _call("F", "OLD", "called"))


@GRAPHS.graph()
def _function_that_makes_nothing(model: onnx.ModelProto) -> None:
    _function(model, "F", [])
    feed_through(model, "l0.qk", 0, _call("F", "OLD", "called"))


@GRAPHS.graph()
def _function_of_a_node_without_operands(model: onnx.ModelProto) -> None:
    _function(model, "F", [node("MatMul", [], ["y"])])
    feed_through(model, "l0.qk", 0, _call("F", "OLD", "called"))


@GRAPHS.graph()
def _function_called_with_too_much(model: onnx.ModelProto) -> None:
    _function(model, "F", [node("Neg", ["x"], ["y"])])
    feed_through(model, "l0.qk", 0, node("F", ["OLD"] * 50, ["called", *map(str, range(50))], domain="own"))


@GRAPHS.graph()
def _function_twice(model: onnx.ModelProto) -> None:
    _function(model, "F", [node("Neg", ["x"], ["y"])])
    _function(model, "F", [_call("F")])
    feed_through(model, "l0.qk", 0, _call("F", "OLD", "called"))


@GRAPHS.graph(REFUSED_SITE, ANY)
def _function_with_an_attribute_nobody_gives(model: onnx.ModelProto) -> None:
    inner = node("Softmax", ["x"], ["y"])
    inner.attribute.add(name="axis", ref_attr_name="nobody", type=onnx.AttributeProto.INT)
    _function(model, "F", [inner])
    feed_through(model, "l0.qk", 0, _call("F", "OLD", "called"))


@GRAPHS.graph()
def _attribute_reference_outside_a_function(model: onnx.ModelProto) -> None:
    for entry in (maker(model, "l0.softmax"), maker(model, "l0.k_turned"), maker(model, "present.0.key")):
        name = entry.attribute[0].name
        del entry.attribute[:]
        entry.attribute.add(name=name, ref_attr_name="nobody", type=onnx.AttributeProto.INT)


# --- names -------------------------------------------------------------------------------------------------------


def rename(model: onnx.ModelProto, old: str, new: str) -> None:
    for entry in model.graph.node:
        entry.input[:] = [new if name == old else name for name in entry.input]
        entry.output[:] = [new if name == old else name for name in entry.output]
    for item in (*model.graph.input, *model.graph.output, *model.graph.value_info, *model.graph.initializer):
        item.name = new if item.name == old else item.name


NASTY = {
    "newlines": "a\nqbpass: all is well\r\n",
    "terminal_escapes": "\x1b[2J\x1b]0;owned\x07\x1b[31m",
    "right_to_left": "key\u202egpj.\u2066",
    "line_separators": "a\u2028b\u2029c\x85d\x0b\x0c",
    "zero_bytes": "a\0b",
    "markup": "[red]x[/red][link=file:///etc/passwd]",
    "html": "</script><script>alert(1)</script><img src=x onerror=alert(1)>",
    "format_fields": "{0}{self.__class__}%s%n",
    "a_path": "../../../etc/passwd",
    "a_megabyte": "n" * 2**20,
    "an_astral_plane": "\U0001f4a9\U000e0001",
}


def _named(old: str, new: str) -> Damage:
    return lambda model: rename(model, old, new)


for _kind, _name in NASTY.items():
    GRAPHS.damaged(f"{_kind}_in_a_tensor", _named("l0.qk", _name), ADMITTED)
    GRAPHS.damaged(f"{_kind}_in_a_cache", _named("past.0.key", _name), ADMITTED)


def _nasty_and_refused(name: str) -> Damage:
    """The name is in the reason for a refused site."""

    def damage(model: onnx.ModelProto) -> None:
        rename(model, "l0.qk", name)
        rename(model, "mask", name + "mask")
        feed_through(model, "l0.softmax", 0, node("Tanh", ["OLD"], [name + "capped"]))
        feed_through(model, "l0.masked0", 1, node("Relu", ["OLD"], [name + "bias"]))

    return damage


def _nasty_and_unusable(name: str) -> Damage:
    """The name is in the one line."""

    def damage(model: onnx.ModelProto) -> None:
        maker(model, "l0.qk").op_type = name or "x"
        maker(model, "l0.qk").name = name
        maker(model, "l0.qk").input[0] = name

    return damage


for _kind, _name in NASTY.items():
    GRAPHS.damaged(f"{_kind}_in_a_refusal", _nasty_and_refused(_name), REFUSED_SITE, REFUSED_SITE)
    GRAPHS.damaged(f"{_kind}_in_an_error", _nasty_and_unusable(_name))


@GRAPHS.graph(REFUSED_SITE, REFUSED_SITE)
def _symbols_called_like_ours(model: onnx.ModelProto) -> None:
    """Names of dimensions that the analysis uses for itself, or that Python does."""
    names = ("cls", "self", "queries", "past", "1", "terms", "a + b", "+", " ", "past + + queries")
    for name in names:
        model.graph.input.append(value(f"input_{name}", FLOAT, [1, name, 3, f"{name}+1"]))
        model.graph.node.append(node("Neg", [f"input_{name}"], [f"neg_{name}"]))
