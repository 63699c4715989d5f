"""Descriptors: every distinct thing a graph asks for, with its types, once, and in its site."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from support_models import FLOAT, attention, group_query, one_node

from qbpass.admission.admit import admit
from qbpass.admission.backends.describe import by_output, describe
from qbpass.admission.backends.descriptor import Descriptor, Operand
from qbpass.admission.backends.ggml_descriptors import query_to_batch_products
from qbpass.admission.backends.signatures import version_of
from qbpass.models.loading import load_graph


def alone(model: onnx.ModelProto) -> Descriptor:
    (found,) = describe(model, by_output({}))
    return found


def graph_of(nodes: list[onnx.NodeProto], shape: tuple[int | str, ...] = (2, "q"), opset: int = 18) -> onnx.ModelProto:
    """x to y, both float of that shape."""
    ends = [[helper.make_tensor_value_info(name, FLOAT, shape)] for name in ("x", "y")]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph(nodes, "g", *ends), opset_imports=opsets, ir_version=10)


def test_types_are_named_by_the_operators_own_parameters() -> None:
    found = alone(attention())
    assert (found.operator, found.domain, found.opset, found.since) == ("Attention", "", 23, 23)
    assert [operand and (operand.name, operand.parameter) for operand in found.inputs] == [
        *(("Q", "T1"), ("K", "T1"), ("V", "T2"))
    ]
    assert found.types == {"T1": "tensor(float)", "T2": "tensor(float)"}
    assert found.function_body


def test_the_operators_version_is_the_newest_at_the_models_opset() -> None:
    for opset, since in ((12, 6), (13, 13), (18, 13), (23, 13)):
        model = one_node("Tanh", [("x", FLOAT, (2,))], [("y", FLOAT, (2,))], opset=opset)
        assert alone(model).since == since
    assert version_of("Tanh", "ai.onnx.ml", 2**40) is None, "a number that no C int holds"
    beyond = one_node("Tanh", [("x", FLOAT, (2,))], [("y", FLOAT, (2,))], opset=10_000)
    assert alone(beyond).since is None, "an opset that this onnx does not know could hold a newer version"


def test_an_operator_of_another_domain_has_the_parameters_of_no_schema() -> None:
    found = alone(group_query(extra=[("head_sink", (4,))]))
    assert found.since == 1
    assert found.inputs[7:11] == (None,) * 4
    assert found.inputs[11] == Operand("tensor(float)", (4,))
    assert found.attribute("num_heads") == 4
    assert found.types == {}
    assert found.dynamic


def test_equal_nodes_are_one_descriptor_and_differing_types_shapes_and_attributes_are_not() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Softmax", ["b"], ["c"], axis=-1),
        helper.make_node("Softmax", ["c"], ["d"], axis=0),
        helper.make_node("Cast", ["d"], ["e"], to=TensorProto.FLOAT16),
        helper.make_node("Relu", ["e"], ["f"]),
        helper.make_node("Cast", ["f"], ["y"], to=FLOAT),
    ]
    found = describe(graph_of(nodes, (2, 3)), by_output({}))
    assert [(d.operator, d.nodes) for d in found] == [
        *(("Relu", 2), ("Softmax", 1), ("Softmax", 1), ("Cast", 1), ("Relu", 1), ("Cast", 1))
    ]
    assert found[0].example == "first"
    assert [d.types["T"] for d in found if d.operator == "Relu"] == ["tensor(float)", "tensor(float16)"]


def test_types_go_through_operators_that_onnx_does_not_know() -> None:
    nodes = [
        helper.make_node("FusedMatMul", ["x", "x"], ["a"], domain="com.microsoft", transB=1),
        helper.make_node("QuickGelu", ["a"], ["b"], domain="com.microsoft"),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    found = describe(graph_of(nodes, (4, 4)), by_output({}))
    assert [[operand.elem_type for operand in d.operands] for d in found] == [["tensor(float)"] * n for n in (3, 2, 2)]


def test_a_dimension_is_dynamic_only_where_the_file_says_so() -> None:
    found = describe(
        graph_of([helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]), by_output({})
    )
    assert [d.dynamic for d in found] == [True, True]
    model = graph_of(
        [helper.make_node("NonZero", ["x"], ["a"]), helper.make_node("Cast", ["a"], ["y"], to=FLOAT)], (2, 3)
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(model)
    assert not any(d.dynamic for d in describe(inferred, by_output({}))), "a symbol that inference invents says nothing"


def branch(name: str) -> onnx.GraphProto:
    out = helper.make_tensor_value_info(f"{name}_out", FLOAT, (2, 3))
    return helper.make_graph([helper.make_node("Relu", ["x"], [f"{name}_out"])], name, [], [out])


def test_bodies_of_control_flow_are_asked_about_and_named() -> None:
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("then"), else_branch=branch("else"))
    model = graph_of([node], (2, 3))
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    relu, chosen = describe(model, by_output({}))
    assert (relu.operator, relu.nodes) == ("Relu", 2)
    assert relu.types == {"T": "tensor(float)"}, "a body sees the tensors around it"
    assert chosen.bodies == ("else_branch", "then_branch")
    assert chosen.types == {"B": "tensor(bool)", "V": "tensor(float)"}


def test_an_ifs_result_has_the_type_of_its_branches_whatever_operators_they_hold() -> None:
    def gelu(name: str) -> onnx.GraphProto:
        out = onnx.ValueInfoProto(name=f"{name}_out")
        node = helper.make_node("QuickGelu", ["x"], [f"{name}_out"], domain="com.microsoft")
        return helper.make_graph([node], name, [], [out])

    chosen = helper.make_node("If", ["c"], ["m"], then_branch=gelu("then"), else_branch=gelu("else"))
    model = graph_of([chosen, helper.make_node("Relu", ["m"], ["y"])], (2, 3))
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    found = {d.operator: d for d in describe(model, by_output({}))}
    assert found["Relu"].inputs == (Operand("tensor(float)", parameter="T", name="X"),)


def test_constants_are_data_and_not_asked_about() -> None:
    value = helper.make_tensor("v", FLOAT, [], [2.0])
    nodes = [helper.make_node("Constant", [], ["c"], value=value), helper.make_node("Mul", ["x", "c"], ["y"])]
    (found,) = describe(graph_of(nodes), by_output({}))
    assert found.operator == "Mul"
    assert found.inputs[1] == Operand("tensor(float)", (), parameter="T", name="B")


def test_a_nan_and_a_long_text_among_the_attributes_are_kept_short_and_comparable() -> None:
    model = one_node("Elu", [("x", FLOAT, (2,))], [("y", FLOAT, (2,))], opset=18, alpha=float("nan"), note="x" * 9999)
    found = alone(model)
    assert found.attribute("alpha") == "nan"
    assert len(str(found.attribute("note"))) == 256
    assert found == alone(model)


def test_an_unknown_operator_with_unknown_operands_is_described_as_that() -> None:
    model = one_node("Whatever", [("x", FLOAT, None)], [("y", FLOAT, None)], opset=18, domain="com.acme")
    found = alone(model)
    assert (found.since, found.opset) == (None, None)
    assert found.inputs == (Operand("tensor(float)"),)


def test_every_node_of_every_site_is_asked_about_in_its_site(tiny_eager: Path) -> None:
    decoder = load_graph(tiny_eager)
    report = admit(decoder)
    sites = {output: site.name for site in report.sites if site.site for output in site.site.nodes.all()}
    found = describe(decoder.model, by_output(sites), queries=3)
    assert len(sites) > 3 * len(report.sites)
    for site in report.sites:
        assert site.site is not None
        own = [d for d in found if d.site == site.name]
        assert sum(d.nodes for d in own) == len(site.site.nodes.all())
        assert {d.queries for d in own} == {3}
        assert {"MatMul", "Softmax"} <= {d.operator for d in own}
    constants = sum(node.op_type == "Constant" for node in decoder.model.graph.node)
    assert sum(d.nodes for d in found) == len(decoder.model.graph.node) - constants
    assert {operand.elem_type for d in found for operand in d.operands} >= {"tensor(float)", "tensor(int64)"}
    assert not [d for d in found if any(operand.elem_type is None for operand in d.operands)]


@pytest.mark.parametrize("queries", [1, 2, 4])
def test_query_to_batch_puts_the_queries_on_the_fourth_axis_of_ggml(tiny_eager: Path, queries: int) -> None:
    report = admit(load_graph(tiny_eager)).sites[0]
    site = report.site
    assert site is not None
    qk, av = query_to_batch_products(report, queries)
    keys, q = qk.inputs
    values, probabilities = av.inputs
    assert keys is not None
    assert q is not None
    assert values is not None
    assert probabilities is not None
    assert keys.shape == (site.head_dim, "n", site.kv_heads, 1)
    assert q.shape == (site.head_dim, 1, site.heads, queries)
    assert values.shape == ("n", site.value_dim, site.kv_heads, 1)
    assert probabilities.shape == ("n", 1, site.heads, queries)
    assert q.strides is not None
    assert q.strides[3] == site.head_dim * site.heads, "the query's own stride becomes the fourth axis's"
    assert [product.queries for product in (qk, av)] == [queries, queries]
