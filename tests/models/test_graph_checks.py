"""A graph is looked at before it is searched: its size, its names, its tensors' data, and the files it came with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tiny_graphs import save, tiny_decoder

from qbpass.models.errors import ModelFileError
from qbpass.models.flat_graph import read_flat_graph
from qbpass.models.graph_io import read_graph
from qbpass.models.loading import load_graph
from qbpass.models.stored_tensors import check_tensors, stored_tensors

TYPES = [kind for kind in TensorProto.DataType.values() if kind != TensorProto.UNDEFINED]


def refuses(model: onnx.ModelProto, folder: Path, says: str) -> None:
    with pytest.raises(ModelFileError, match=says) as caught:
        read_flat_graph(save(model, folder))
    assert "\n" not in str(caught.value)


def holding(tensor: TensorProto) -> onnx.ModelProto:
    return helper.make_model(helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [], [], [tensor]))


@pytest.mark.parametrize("elem_type", TYPES, ids=TensorProto.DataType.Name)
@pytest.mark.parametrize("shape", [(), (3,), (5, 0), (3, 3)])
def test_what_onnx_writes_of_any_type_is_whole(elem_type: int, shape: tuple[int, ...]) -> None:
    values = np.ones(shape, np.float32)
    if elem_type == TensorProto.STRING:
        tensor = helper.make_tensor("w", elem_type, shape, [b"\xff"] * values.size)
        check_tensors(holding(tensor), Path("m"))
        return
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    typed = helper.make_tensor("w", elem_type, shape, values.astype(dtype).reshape(-1))
    raw = numpy_helper.from_array(values.astype(dtype), "w")
    for tensor in (typed, raw):
        check_tensors(holding(tensor), Path("m"))
        assert numpy_helper.to_array(tensor).size == values.size


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.dims.append(2), "holds 12 bytes, its shape and type need 24"),
        (lambda t: t.ClearField("dims"), "holds 12 bytes, its shape and type need 4"),
        (lambda t: t.dims.insert(0, 2**62), "its shape and type need 55,340,232,221,128,654,848"),
        (lambda t: setattr(t, "raw_data", b"1"), "holds 1 bytes"),
        (lambda t: t.ClearField("raw_data"), "holds 0 entries, its shape and type need 3"),
        (lambda t: setattr(t, "data_type", TensorProto.DOUBLE), "holds 12 bytes, its shape and type need 24"),
        (lambda t: setattr(t, "data_type", TensorProto.STRING), "holds 0 entries"),
        (lambda t: setattr(t, "data_type", 0), "unknown data type 0"),
        (lambda t: setattr(t, "data_type", 99), "unknown data type 99"),
        (lambda t: t.dims.insert(0, -1), r"negative dimension \(-1\)"),
        (lambda t: t.dims.extend([1] * 40), "has 41 axes"),
        (lambda t: t.segment.MergeFrom(TensorProto.Segment(begin=0, end=1)), "segment"),
    ],
)
def test_a_tensor_that_is_not_whole_is_refused(change: Callable[[TensorProto], None], says: str) -> None:
    tensor = numpy_helper.from_array(np.ones(3, np.float32), "w")
    change(tensor)
    with pytest.raises(ModelFileError, match=says):
        check_tensors(holding(tensor), Path("m"))


def test_tensors_are_found_wherever_a_file_holds_them() -> None:
    def tensor(name: str) -> TensorProto:
        return helper.make_tensor(name, TensorProto.FLOAT, [1], [1.0])

    def sparse(name: str) -> onnx.SparseTensorProto:
        indices = helper.make_tensor(f"{name}.indices", TensorProto.INT64, [1], [0])
        return helper.make_sparse_tensor(tensor(name), indices, [4])

    body = helper.make_graph([helper.make_node("Constant", [], ["c"], value=tensor("in a body"))], "b", [], [])
    node = helper.make_node("If", ["x"], ["y"], then_branch=body, sparse=sparse("in an attribute"))
    node.attribute.append(helper.make_attribute("many", [tensor("in a list")]))
    graph = helper.make_graph([node], "g", [], [], [tensor("an initializer")], sparse_initializer=[sparse("sparse")])
    function = helper.make_function(
        "own", "F", [], ["y"], [helper.make_node("Constant", [], ["y"], value=tensor("in a function"))], []
    )
    model = helper.make_model(graph, functions=[function])
    model.training_info.add().algorithm.initializer.append(tensor("for training"))
    assert sorted(found.name for found in stored_tensors(model)) == sorted(
        [
            *("an initializer", "for training", "in a body", "in a function", "in a list"),
            *("in an attribute", "in an attribute.indices", "sparse", "sparse.indices"),
        ]
    )


@pytest.mark.parametrize(
    ("most", "says"),
    [
        ("MAX_TENSORS", r"\d+ tensors that nodes make, more than the 4"),
        ("MAX_OPERANDS", r"\d+ operands of nodes, more than the 4"),
        ("MAX_INTERFACE", "5 inputs, more than the 4"),
    ],
)
def test_a_graph_that_would_take_hours_is_refused_by_its_size(
    most: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"qbpass.models.graph_size.{most}", 4)
    refuses(tiny_decoder(1), tmp_path, says)


@pytest.mark.parametrize("field", ["input", "output", "initializer"])
def test_a_name_that_is_given_twice_is_refused(field: str, tmp_path: Path) -> None:
    model = tiny_decoder(1)
    entries = getattr(model.graph, field)
    entries.append(entries[0])
    refuses(model, tmp_path, f"{entries[0].name!r} is made twice")


def test_bodies_are_counted_wherever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_decoder(1)
    result = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("Neg", ["logits"], ["inner"])], "b", [], [result])
    deep = helper.make_node("If", ["flag"], ["inner"], then_branch=body, else_branch=body)
    nested = helper.make_graph([deep], "n", [], [result])
    model.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    model.graph.node.append(helper.make_node("If", ["flag"], ["y"], then_branch=nested, else_branch=body))
    monkeypatch.setattr("qbpass.models.graph_size.MAX_BODIES", 3)
    refuses(model, tmp_path, "has 4 bodies of nodes, more than the 3")


def test_a_body_may_use_a_name_that_another_body_used(tmp_path: Path) -> None:
    model = tiny_decoder(1)
    result = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("Neg", ["logits"], ["inner"])], "b", [], [result])
    model.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    for number in range(2):
        model.graph.node.append(helper.make_node("If", ["flag"], [f"y{number}"], then_branch=body, else_branch=body))
    assert read_graph(save(model, tmp_path)).graph.node[-1].output[0] == "y1"
    model.graph.node.append(helper.make_node("Neg", ["inner"], ["z"]))
    refuses(model, tmp_path, "reads tensor 'inner', which nothing makes")


def test_a_graph_without_a_version_of_its_operators_is_refused(tmp_path: Path) -> None:
    model = tiny_decoder(1)
    for version in (0, -1):
        model.opset_import[0].version = version
        refuses(model, tmp_path, "no version of ONNX's operators")
    del model.opset_import[:]
    refuses(model, tmp_path, "no version of ONNX's operators")


@pytest.mark.parametrize("operator", ["nobody.knows:Softmax", "com.microsoft:FusedMatMul", "nobody.knows:Gather"])
def test_operators_that_onnx_has_no_schema_for_need_their_operands_too(operator: str, tmp_path: Path) -> None:
    domain, _, op_type = operator.partition(":")
    model = tiny_decoder(1)
    model.graph.node.append(helper.make_node(op_type, [], ["strange"], domain=domain))
    refuses(model, tmp_path, "fewer than its operator needs")


@pytest.mark.parametrize(
    ("operator", "attributes", "says"),
    [
        ("Softmax", {"axis": "last"}, "has an attribute 'axis' of another type than its operator's"),
        ("Transpose", {"perm": 1}, "has an attribute 'perm' of another type"),
        ("Cast", {}, "has no attribute 'to', which its operator needs"),
        ("nobody.knows:Softmax", {"axis": 1.0}, "has an attribute 'axis' of another type"),
        ("com.microsoft:FusedMatMul", {"alpha": "x"}, "has an attribute 'alpha' of another type"),
    ],
)
def test_attributes_are_of_the_type_that_their_operator_says(
    operator: str, attributes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    domain, _, op_type = operator.rpartition(":")
    model = tiny_decoder(1)
    operands = ["logits"] * (1 + (op_type == "FusedMatMul"))
    model.graph.node.append(helper.make_node(op_type, operands, ["strange"], domain=domain, **attributes))
    refuses(model, tmp_path, says)


def test_a_node_with_more_operands_than_its_operator_takes_is_refused(tmp_path: Path) -> None:
    model = tiny_decoder(1)
    model.graph.node.append(helper.make_node("Mul", ["logits"] * 3, ["strange"]))
    refuses(model, tmp_path, "has 3 operands, more than its operator takes")


def test_a_dimension_below_0_is_one_that_is_not_known(tmp_path: Path) -> None:
    model = tiny_decoder(1)
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_value = -1
    read = load_graph(save(model, tmp_path))
    assert not read.model.graph.input[1].type.tensor_type.shape.dim[1].HasField("dim_value")


def test_a_declared_type_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    model = tiny_decoder(1)
    model.graph.input[0].type.tensor_type.elem_type = 99
    refuses(model, tmp_path, "has the unknown data type 99")


def test_an_if_whose_branches_have_no_names_is_no_merged_decoder(tmp_path: Path) -> None:
    model = tiny_decoder(1)
    model.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    result = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("Softmax", ["logits"], ["inner"])], "b", [], [result])
    chooser = helper.make_node("If", ["flag"], ["chosen"], domain="nobody.knows")
    chooser.attribute.append(helper.make_attribute("branches", [body, body]))
    model.graph.node.append(chooser)
    assert len(read_flat_graph(save(model, tmp_path)).graph.node) == len(model.graph.node)


@pytest.mark.parametrize(
    "target",
    [
        helper.make_tensor("t", TensorProto.FLOAT, [2], [np.nan, np.inf]),
        helper.make_tensor("t", TensorProto.STRING, [2], [b"one", b"\xff"]),
        helper.make_tensor("t", TensorProto.COMPLEX64, [1], [1j]),
    ],
    ids=["nan", "text", "complex"],
)
def test_a_table_reshaped_to_what_are_no_sizes_is_no_table(target: TensorProto, tmp_path: Path) -> None:
    model = tiny_decoder(1)
    model.graph.initializer.append(target)
    model.graph.node.insert(0, helper.make_node("Reshape", ["embedding", "t"], ["table"]))
    next(node for node in model.graph.node if node.op_type == "Gather").input[0] = "table"
    assert load_graph(save(model, tmp_path)).interface.input_ids is None


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A model's folder whose tokenizer.json is a link to a file of the user's."""
    (tmp_path / "secret").write_text("{}")
    folder = save(tiny_decoder(1), tmp_path / "model").parent
    (folder / "tokenizer.json").symlink_to(tmp_path / "secret")
    return folder


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "genai_config.json", "model.onnx"])
def test_a_file_beside_the_model_that_links_out_of_its_folder_is_not_read(name: str, linked: Path) -> None:
    (linked / "tokenizer.json").unlink()
    (linked / name).unlink(missing_ok=True)
    (linked / name).symlink_to(linked.parent / "secret")
    with pytest.raises(ModelFileError, match=f"{name} is a link out of the model's folder"):
        load_graph(linked)


def test_links_of_a_download_cache_lead_to_the_models_own_files(linked: Path) -> None:
    """As huggingface_hub lays them out: snapshots/REVISION/FILE is a link to blobs/DIGEST."""
    repository = linked.parent / "cache" / "models--tiny"
    snapshot = repository / "snapshots" / "0123" / "onnx"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for number, name in enumerate(("model.onnx", "tokenizer.json")):
        (linked / name).replace(repository / "blobs" / str(number))
        (snapshot / name).symlink_to(f"../../../blobs/{number}")
    (repository / "blobs" / "1").unlink()
    (repository / "blobs" / "1").write_text("{}")
    assert load_graph(snapshot.parent).tokenizer_files == {"tokenizer.json": snapshot / "tokenizer.json"}
