"""A file that is not a whole, honest ONNX model is named so in one line, and nothing outside its folder is read."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tiny_graphs import save, tiny_decoder, value

from qbpass.models.errors import ModelFileError, QbpassError
from qbpass.models.external_data import external_entry, external_tensors
from qbpass.models.find_contract import find_contract
from qbpass.models.graph_io import read_graph
from qbpass.models.weight_sources import WeightSources, weight_files


def refuses(path: Path, says: str) -> None:
    with pytest.raises(ModelFileError, match=says) as caught:
        read_graph(path)
    assert "\n" not in str(caught.value)


@pytest.fixture
def external(tmp_path: Path) -> Path:
    return save(tiny_decoder(1), tmp_path / "model", external=True)


def point_at(path: Path, location: str) -> None:
    """Rewrites the first external reference of the model in `path`."""
    model = onnx.load(path, load_external_data=False)
    tensor = next(external_tensors(model))
    next(entry for entry in tensor.external_data if entry.key == "location").value = location
    path.write_bytes(model.SerializeToString())


def test_a_graph_is_read_without_its_weights(external: Path) -> None:
    model = read_graph(external)
    names = [t.name for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    assert "embedding" in names
    assert not any(t.raw_data for t in model.graph.initializer if t.name in names)
    assert weight_files(model, WeightSources(external.parent)) == {
        "model.onnx.data": external.parent / "model.onnx.data"
    }


def test_a_graph_with_inline_weights_has_no_weight_files(tmp_path: Path) -> None:
    path = save(tiny_decoder(1), tmp_path)
    assert weight_files(read_graph(path), WeightSources(tmp_path)) == {}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\xff" * 500, "not an ONNX model"),
        (bytes(range(256)) * 20, "not an ONNX model"),
        (b"version https://git-lfs.example/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"\n <!DOCTYPE html><html></html>", "HTML page"),
        (b"GGUF\x03\x00\x00\x00", "qbpass export"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "holds no graph"),
        (helper.make_model(helper.make_graph([], "empty", [], [])).SerializeToString(), "no nodes"),
    ],
)
def test_what_is_no_model_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    refuses(path, says)


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: float) -> None:
    path = save(tiny_decoder(1), tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    refuses(path, "truncated or damaged")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    refuses(tmp_path / "nothing.onnx", "does not exist")
    refuses(tmp_path, "not a regular file")


def test_a_file_larger_than_protobuf_allows_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    with path.open("wb") as stream:
        stream.truncate(2**31 + 1)  # sparse: takes no space
    refuses(path, "more than the 2 GiB")


def test_an_unsorted_graph_is_refused(tmp_path: Path) -> None:
    model = tiny_decoder(1)
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    refuses(save(model, tmp_path), "before it is made: sort the graph")


def test_a_cyclic_graph_is_refused(tmp_path: Path) -> None:
    model = tiny_decoder(1)
    first = next(node for node in model.graph.node if node.op_type == "Cos")
    first.input[0] = "logits"
    refuses(save(model, tmp_path), "is cyclic")


def test_a_graph_that_reads_what_nobody_makes_is_refused(tmp_path: Path) -> None:
    model = tiny_decoder(1)
    next(node for node in model.graph.node if node.op_type == "Cos").input[0] = "ghost"
    refuses(save(model, tmp_path), "'ghost', which nothing makes")


def test_a_tensor_made_twice_is_refused(tmp_path: Path) -> None:
    model = tiny_decoder(1)
    model.graph.node.append(helper.make_node("Identity", ["input_ids"], ["logits"]))
    refuses(save(model, tmp_path), "'logits' is made twice")


def branches(captured: str) -> onnx.ModelProto:
    inner = helper.make_graph(
        [helper.make_node("Identity", [captured], ["inner"])], "branch", [], [value("inner", TensorProto.FLOAT, 1)]
    )
    nodes = [
        helper.make_node("Neg", ["x"], ["early"]),
        helper.make_node("If", ["flag"], ["y"], then_branch=inner, else_branch=inner),
        helper.make_node("Neg", ["y"], ["late"]),
    ]
    inputs = [value("x", TensorProto.FLOAT, 1), value("flag", TensorProto.BOOL, 1)]
    return helper.make_model(helper.make_graph(nodes, "g", inputs, [value("late", TensorProto.FLOAT, 1)]))


def test_subgraphs_may_capture_what_was_made_before_them(tmp_path: Path) -> None:
    assert len(read_graph(save(branches("early"), tmp_path)).graph.node) == 3


def test_what_a_subgraph_makes_is_known_in_it_alone(tmp_path: Path) -> None:
    """Both branches make a tensor of one name, which the outer graph may make later and must not read before."""
    model = branches("early")
    model.graph.node.append(helper.make_node("Neg", ["late"], ["inner"]))
    assert len(read_graph(save(model, tmp_path / "later")).graph.node) == 4
    model.graph.node[2].input[0] = "inner"
    model.graph.node[3].input[0] = "y"
    refuses(save(model, tmp_path / "before"), "'inner' before it is made")


def test_subgraphs_that_capture_what_depends_on_them_are_a_cycle(tmp_path: Path) -> None:
    refuses(save(branches("late"), tmp_path), "is cyclic")


def test_external_data_is_never_read_outside_the_models_folder(external: Path) -> None:
    outside = external.parent.parent / "secret.bin"
    outside.write_bytes(b"x" * 2**20)
    for location, says in (
        (str(outside), "absolute path"),
        ("C:\\secret.bin", "absolute path"),
        ("../secret.bin", "leaves the model's folder"),
        ("sub/../../secret.bin", "leaves the model's folder"),
        ("..\\secret.bin", "leaves the model's folder"),
        ("*/_ORT_MEM_ADDR_/*", "names memory, not a file"),
    ):
        point_at(external, location)
        refuses(external, says)
        with pytest.raises(ModelFileError, match=says):
            read_graph(external, weights="ignored")


def test_external_data_with_a_name_that_no_folder_can_hold_is_refused(external: Path) -> None:
    point_at(external, "a" * 5000)
    refuses(external, "can't be followed")


def test_a_location_that_is_no_text_is_refused(external: Path) -> None:
    external.write_bytes(external.read_bytes().replace(b"model.onnx.data", b"model.onnx.\xff\xfe\xff\xff"))
    refuses(external, "by what is no text")


@pytest.mark.parametrize("name", ["input_ids", "embedding", "logits", "past.0.key"])
def test_a_name_that_is_no_text_is_refused(tmp_path: Path, name: str) -> None:
    path = save(tiny_decoder(1), tmp_path)
    path.write_bytes(path.read_bytes().replace(name.encode(), b"\xff" * len(name)))
    refuses(path, "a name that is not text")


def test_an_attribute_without_a_type_is_refused(tmp_path: Path) -> None:
    model = tiny_decoder(1)
    next(node for node in model.graph.node if node.op_type == "Concat").attribute[0].type = 0
    refuses(save(model, tmp_path), "attribute without a type")


def test_a_link_out_of_the_models_folder_is_refused(external: Path) -> None:
    outside = external.parent.parent / "secret.bin"
    outside.write_bytes(b"x" * 2**20)
    (external.parent / "innocent.bin").symlink_to(outside)
    point_at(external, "innocent.bin")
    refuses(external, "link out of the model's folder")


def test_a_link_inside_the_models_folder_is_followed(external: Path) -> None:
    (external.parent / "alias.bin").symlink_to("model.onnx.data")
    point_at(external, "alias.bin")
    assert "alias.bin" in weight_files(read_graph(external), WeightSources(external.parent))


def test_missing_external_data_is_refused(external: Path) -> None:
    (external.parent / "model.onnx.data").unlink()
    refuses(external, "is missing")


def test_truncated_external_data_is_refused(external: Path) -> None:
    data = external.parent / "model.onnx.data"
    data.write_bytes(data.read_bytes()[:-1])
    refuses(external, "is truncated")


def test_an_external_constant_in_a_subgraph_is_checked_too(tmp_path: Path) -> None:
    hidden = TensorProto(name="hidden", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    hidden.external_data.add(key="location", value="../secret.bin")
    model = branches("early")
    branch = model.graph.node[1].attribute[0].g
    branch.node.insert(0, helper.make_node("Constant", [], ["constant"], value=hidden))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    refuses(path, "leaves the model's folder")


def test_an_entry_without_a_length_has_the_length_of_its_shape() -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.INT4, dims=[3, 3])
    tensor.external_data.add(key="location", value="w.bin")
    assert external_entry(tensor) == ("w.bin", 0, 5)  # nine half bytes


@pytest.mark.parametrize(("key", "text"), [("offset", "-1"), ("length", "1e9"), ("offset", "0x10")])
def test_an_entry_with_a_number_that_is_none_is_refused(key: str, text: str) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1])
    tensor.external_data.add(key="location", value="w.bin")
    tensor.external_data.add(key=key, value=text)
    with pytest.raises(ModelFileError, match="no byte count"):
        external_entry(tensor)


def test_a_node_without_its_operands_is_refused(tmp_path: Path) -> None:
    model = tiny_decoder(1)
    del next(node for node in model.graph.node if node.op_type == "Gather").input[1:]
    refuses(save(model, tmp_path), "has 1 operands and 1 results, fewer than its operator needs")


def test_an_external_tensor_of_an_unknown_type_is_refused(external: Path) -> None:
    model = onnx.load(external, load_external_data=False)
    tensor = next(external_tensors(model))
    tensor.data_type = 99
    del tensor.external_data[:]
    tensor.external_data.add(key="location", value="model.onnx.data")
    external.write_bytes(model.SerializeToString())
    refuses(external, "unknown data type 99")


WHOLE = tiny_decoder(1).SerializeToString()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_bytes_give_a_model_or_one_line_and_never_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, int]]
) -> None:
    data = bytearray(WHOLE)
    for at, byte in damage:
        data[at] = byte
    path = tmp_path_factory.getbasetemp() / "damaged.onnx"
    path.write_bytes(bytes(data))
    problem = "one line"
    try:
        find_contract(read_graph(path))
    except QbpassError as error:
        problem = str(error)
    assert len(problem.splitlines()) == 1
