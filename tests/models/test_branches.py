"""A merged decoder is reduced to its branch with a past, as one flat graph that computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tiny_graphs import FLOAT, HEAD_DIM, INT64, KV_HEADS, Builder, as_model, feeds, save, tiny_decoder, value

from qbpass.models.branches import flatten_merged
from qbpass.models.errors import ContractError
from qbpass.models.find_interface import find_interface
from qbpass.models.freeze import freeze
from qbpass.models.graph_io import read_graph
from qbpass.models.loading import load_decoder, load_graph
from qbpass.models.session import SessionSpec, open_session

SPEC = SessionSpec(threads=1)
LAYERS = 2


def merged(layers: int = LAYERS, branch_of: str = "then_branch", flag_of: str = "bool") -> onnx.ModelProto:
    """Two decoders behind an If as optimum writes them, weights outside.

    The other branch makes its cache from nothing and negates the logits. Both name their inner tensors alike.
    """
    plain = tiny_decoder(layers)
    others = first_call(plain)
    branches = {
        name: helper.make_graph(graph.node, name, [], graph.output)
        for name, graph in (("with", plain.graph), ("without", others.graph))
    }
    then, alternative = ("with", "without") if branch_of == "then_branch" else ("without", "with")
    names = [v.name for v in plain.graph.output]
    b = Builder()
    flag = "flag"
    if flag_of == "int":
        flag = b.op("Equal", "flag", b.const(1))
    elif flag_of == "past":
        flag = b.op("Greater", b.op("Shape", "past.0.key", start=2, end=3), b.const(0))
    chooser = helper.make_node(
        "If", [flag], names, "optimum::if", then_branch=branches[then], else_branch=branches[alternative]
    )
    b.nodes.append(chooser)
    b.initializers.extend(plain.graph.initializer)
    states = value("encoder_states", FLOAT, 1, "s", 4)
    flags = {"bool": [value("flag", TensorProto.BOOL, 1)], "int": [value("flag", INT64, 1)], "past": []}[flag_of]
    return as_model(b, [*plain.graph.input, states, *flags], list(plain.graph.output))


def first_call(plain: onnx.ModelProto) -> onnx.ModelProto:
    other = onnx.ModelProto.FromString(plain.SerializeToString())
    for node in other.graph.node:
        if node.op_type == "Concat" and node.output[0].startswith("present."):
            node.CopyFrom(helper.make_node("Identity", [node.input[1]], list(node.output)))
        if node.output[0] == "logits":
            node.output[0] = "positive"
    other.graph.node.append(helper.make_node("Neg", ["positive"], ["negative"]))
    other.graph.node.append(helper.make_node("ReduceSum", ["encoder_states"], ["of_states"], keepdims=0))
    other.graph.node.append(helper.make_node("Add", ["negative", "of_states"], ["logits"]))
    return other


@pytest.mark.parametrize("branch_of", ["then_branch", "else_branch"])
def test_the_branch_with_a_past_is_found_by_what_it_reads(branch_of: str) -> None:
    model = merged(branch_of=branch_of)
    assert flatten_merged(model)
    interface = find_interface(model)
    assert [problem.code for problem in interface.problems] == ["MERGED_DECODER"]
    assert interface.problems[0].evidence["branch"] == f"{branch_of} of optimum::if"
    assert interface.kv == find_interface(tiny_decoder(LAYERS)).kv


def test_inputs_that_only_the_other_branch_read_are_left_out() -> None:
    model = merged()
    flatten_merged(model)
    assert [v.name for v in model.graph.input] == [v.name for v in tiny_decoder(LAYERS).graph.input]


@pytest.mark.parametrize("branch_of", ["then_branch", "else_branch"])
def test_the_flat_graph_computes_what_the_branch_computes(branch_of: str, tmp_path: Path) -> None:
    path = save(merged(branch_of=branch_of), tmp_path / "merged", external=True)
    flat = merged(branch_of=branch_of)
    flatten_merged(flat)
    past = [np.full((1, KV_HEADS, 3, HEAD_DIM), 0.25, np.float32)] * (2 * LAYERS)
    call = feeds(LAYERS, [3, 1, 4], past)
    states = np.ones((1, 2, 4), np.float32)
    flag = np.array([branch_of == "then_branch"])
    expected = open_session(path, SPEC).run(None, {**call, "encoder_states": states, "flag": flag})
    found = open_session(flat.SerializeToString(), SPEC).run(None, call)
    assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]


def test_names_that_the_outer_graph_has_too_are_told_apart() -> None:
    """The outer graph makes a tensor, behind the If, of a name that the branch uses inside."""
    model = merged()
    inner = model.graph.node[0].attribute[0].g.node[2].output[0]
    model.graph.node.append(helper.make_node("Tanh", ["logits"], [inner]))
    model.graph.output.append(value(inner, FLOAT, 1, "q", 53))
    assert flatten_merged(model)
    made = [name for node in model.graph.node for name in node.output]
    assert len(made) == len(set(made))
    onnx.checker.check_model(model)


def test_a_result_that_the_branch_only_hands_through_keeps_its_outer_name() -> None:
    """A past handed out unchanged, and one result under two names."""
    model = merged(1)
    for attribute in model.graph.node[0].attribute:
        attribute.g.output.append(value("past.0.key", FLOAT, 1, KV_HEADS, "past", HEAD_DIM))
        attribute.g.output.append(value("logits", FLOAT, 1, "q", 53))
    model.graph.node[0].output.extend(["handed", "again"])
    model.graph.output.append(value("handed", FLOAT, 1, KV_HEADS, "past", HEAD_DIM))
    model.graph.output.append(value("again", FLOAT, 1, "q", 53))
    assert flatten_merged(model)
    call = feeds(1, [3, 1], [np.ones((1, KV_HEADS, 2, HEAD_DIM), np.float32)] * 2)
    session = open_session(model.SerializeToString(), SPEC)
    results = dict(zip([v.name for v in session.get_outputs()], session.run(None, call), strict=True))
    assert results["handed"].tobytes() == call["past.0.key"].tobytes()
    assert results["again"].tobytes() == results["logits"].tobytes()


def test_weights_stay_where_they_are(tmp_path: Path) -> None:
    decoder = load_graph(save(merged(), tmp_path, external=True))
    external = [t for t in decoder.model.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    assert external
    assert all(t.external_data[0].value == "model.onnx.data" and not t.raw_data for t in external)


@pytest.mark.parametrize("flag_of", ["bool", "int", "past"])
def test_a_merged_decoder_is_loaded_and_frozen_and_goes_on_saying_what_it_is(flag_of: str, tmp_path: Path) -> None:
    path = save(merged(flag_of=flag_of), tmp_path / "source", external=True)
    with pytest.raises(ContractError, match="merged decoder"):
        load_decoder(path)
    decoder = load_graph(path)
    frozen = freeze(decoder, tmp_path / "frozen", SPEC)
    again = load_graph(frozen.path, elsewhere=frozen.elsewhere)
    for found in (frozen, again):
        assert found.interface.kv == decoder.interface.kv
        assert [problem.code for problem in found.interface.problems] == ["MERGED_DECODER"]
    assert open_session(frozen.path, SPEC, weights=frozen.weights).get_inputs()[0].name == "input_ids"


def test_a_frozen_branch_is_marked_though_the_optimizer_should_drop_the_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime 1.32 keeps a model's metadata; a frozen branch without it would pass for a whole decoder."""

    def without_notes(path: Path, **options: Any) -> onnx.ModelProto:
        model = read_graph(path, **options)
        if path.parent.name.startswith("."):  # what the optimizer wrote, before it is published
            del model.metadata_props[:]
        return model

    decoder = load_graph(save(merged(), tmp_path / "source"))
    monkeypatch.setattr("qbpass.models.freeze.read_graph", without_notes)
    frozen = freeze(decoder, tmp_path / "frozen", SPEC)
    assert [problem.code for problem in frozen.interface.problems] == ["MERGED_DECODER"]


def test_an_if_inside_a_decoder_is_left_alone() -> None:
    """Only branches that hold attention are decoders: a choice of tables is no merged decoder."""
    model = tiny_decoder(1)
    branch = helper.make_graph(
        [helper.make_node("Identity", ["freq"], ["inner"])], "b", [], [value("inner", FLOAT, HEAD_DIM)]
    )
    model.graph.input.append(value("long", TensorProto.BOOL, 1))
    model.graph.node.insert(0, helper.make_node("If", ["long"], ["chosen"], then_branch=branch, else_branch=branch))
    before = model.SerializeToString(deterministic=True)
    assert not flatten_merged(model)
    assert model.SerializeToString(deterministic=True) == before
