"""Model-local functions are written into the graph at loading, and what a few lines may describe is bounded."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper
from tiny_graphs import feeds, save, tiny_decoder

from qbpass.models.errors import ModelFileError
from qbpass.models.find_interface import find_interface
from qbpass.models.freeze import freeze
from qbpass.models.functions import MAX_DEPTH, inline_functions
from qbpass.models.graph_io import read_graph
from qbpass.models.loading import load_decoder
from qbpass.models.session import SessionSpec, open_session

SPEC = SessionSpec(threads=1)
LOCAL = "local"


def with_functions(layers: int = 2) -> onnx.ModelProto:
    """The tiny decoder with each Concat and each Softmax inside a function, the Softmax in one called by another."""
    model = tiny_decoder(layers)
    for node in model.graph.node:
        if node.op_type == "Softmax":
            node.CopyFrom(helper.make_node("outer", list(node.input), list(node.output), domain=LOCAL))
        elif node.op_type == "Concat":
            axis = helper.get_node_attr_value(node, "axis")
            node.CopyFrom(helper.make_node("append", list(node.input), list(node.output), domain=LOCAL, axis=axis))
    concat = helper.make_node("Concat", ["a", "b"], ["c"])
    concat.attribute.add(name="axis", ref_attr_name="axis", type=onnx.AttributeProto.INT)
    function(model, "append", ["a", "b"], ["c"], [concat], ["axis"])
    function(model, "inner", ["x"], ["y"], [helper.make_node("Softmax", ["x"], ["y"], axis=-1)])
    function(model, "outer", ["x"], ["y"], [call("inner", "x", "y")])
    model.opset_import.append(helper.make_opsetid(LOCAL, 1))
    return model


def call(name: str, read: str, result: str) -> onnx.NodeProto:
    return helper.make_node(name, [read], [result], domain=LOCAL)


def function(
    model: onnx.ModelProto,
    name: str,
    inputs: list[str],
    outputs: list[str],
    nodes: list[onnx.NodeProto],
    attributes: list[str] | None = None,
) -> None:
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(LOCAL, 1)]
    model.functions.append(helper.make_function(LOCAL, name, inputs, outputs, nodes, opsets, attributes or []))


def test_attention_inside_functions_is_read_and_the_file_runs_as_it_is(tmp_path: Path) -> None:
    path = save(with_functions(), tmp_path / "source", external=True)
    decoder = load_decoder(path)
    assert len(decoder.model.functions) == 0
    assert decoder.interface == find_interface(tiny_decoder(2))
    frozen = freeze(decoder, tmp_path / "frozen", SPEC)
    call_of_three = feeds(2, [3, 1, 4])
    results = [
        [
            array.tobytes()
            for array in open_session(graph, SPEC, weights=weights, optimize=optimize).run(None, call_of_three)
        ]
        for graph, weights, optimize in ((path, None, True), (frozen.path, frozen.weights, False))
    ]
    assert results[0] == results[1]


def test_a_model_without_functions_is_not_touched(tmp_path: Path) -> None:
    model = tiny_decoder(1)
    assert inline_functions(model, tmp_path) is model


def test_weights_stay_outside(tmp_path: Path) -> None:
    decoder = load_decoder(save(with_functions(), tmp_path, external=True))
    assert any(t.data_location == onnx.TensorProto.EXTERNAL for t in decoder.model.graph.initializer)


def hostile(tmp_path: Path, bodies: dict[str, list[str]]) -> Path:
    """A graph that calls the first function; each function calls others, one after the other."""
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18, "{LOCAL}" : 1]>'
        f"g (float[1,q] x) => (float[1,q] y) {{ y = {LOCAL}.{next(iter(bodies))} (x) }}"
    )
    for name, calls in bodies.items():
        tensors = ["x", *(f"t{at}" for at in range(len(calls) - 1)), "y"]
        nodes = [
            helper.make_node(callee, [tensors[at]], [tensors[at + 1]], domain=LOCAL if callee in bodies else "")
            for at, callee in enumerate(calls)
        ]
        function(model, name, ["x"], ["y"], nodes)
    return save(model, tmp_path)


@pytest.mark.parametrize(
    ("bodies", "says"),
    [
        ({"f": ["f"]}, "calls itself"),
        ({"f": ["Relu", "g"], "g": ["Relu", "f"]}, "calls itself"),
        ({f"f{at}": [f"f{at + 1}"] * 2 for at in range(40)} | {"f40": ["Relu"]}, "nodes, more than"),
        ({f"f{at}": [f"f{at + 1}"] for at in range(MAX_DEPTH + 1)} | {f"f{MAX_DEPTH + 1}": ["Relu"]}, "deep"),
        ({f"f{at}": [f"f{at + 1}"] for at in range(3000)} | {"f3000": ["Relu"]}, "deep"),
    ],
)
def test_functions_without_end_are_refused_before_they_are_written_out(
    tmp_path: Path, bodies: dict[str, list[str]], says: str
) -> None:
    path = hostile(tmp_path, bodies)
    with pytest.raises(ModelFileError, match=says) as caught:
        load_decoder(path)
    assert "\n" not in str(caught.value)


def test_depth_is_that_of_the_longest_chain_in_whatever_order_functions_are_met(tmp_path: Path) -> None:
    """The graph calls the lower half first: measured on its own, neither half is too deep."""
    half = MAX_DEPTH // 2 + 1
    bodies = {"start": [f"f{half}", "f0"]}
    bodies |= {f"f{at}": [f"f{at + 1}"] for at in range(2 * half)} | {f"f{2 * half}": ["Relu"]}
    with pytest.raises(ModelFileError, match="deep"):
        load_decoder(hostile(tmp_path, bodies))


def test_what_a_function_hides_is_checked_like_the_graph_itself(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18, "{LOCAL}" : 1]>'
        f"g (float[1,q] x) => (float[1,q] y) {{ y = {LOCAL}.f (x) }}"
    )
    function(model, "f", ["x"], ["y"], [helper.make_node("Add", ["x"], ["y"])])
    model.functions[0].opset_import[0].version = 18
    path = save(model, tmp_path)
    assert read_graph(path).functions
    with pytest.raises(ModelFileError, match="fewer than its operator needs"):
        load_decoder(path)


def test_an_operator_set_that_only_a_function_imports_is_imported_by_the_graph() -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18, "{LOCAL}" : 1]>'
        f"g (float[1,q] x) => (float[1,q] y) {{ y = {LOCAL}.f (x) }}"
        f'<domain: "{LOCAL}", opset_import: ["" : 18, "com.microsoft" : 1]>'
        "f (x) => (y) { y = com.microsoft.Gelu (x) }"
    )
    flat = inline_functions(model, Path("model.onnx"))
    assert {entry.domain: entry.version for entry in flat.opset_import}["com.microsoft"] == 1
    open_session(flat.SerializeToString(), SPEC)
