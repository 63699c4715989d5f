"""Each location of external weights lies in one folder, and nothing outside it is read."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from tiny_graphs import feeds, save, tiny_decoder

from qbpass.models.errors import ModelFileError
from qbpass.models.external_data import external_entry, external_tensors, set_external_entry
from qbpass.models.graph_io import read_graph
from qbpass.models.session import SessionSpec, open_session
from qbpass.models.weight_sources import WeightSources, weight_files

SPEC = SessionSpec(threads=1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A graph whose weights lie in three files of three folders, one of them below the other's."""
    path = save(tiny_decoder(2), tmp_path / "graph", external=True)
    whole = (path.parent / "model.onnx.data").read_bytes()
    graph = onnx.load(path, load_external_data=False)
    for place, tensor in enumerate(external_tensors(graph)):
        _, offset, length = external_entry(tensor)
        location = ("model.onnx.data", "user.bin", "below/deep.bin")[place % 3]
        set_external_entry(tensor, location, offset, length)
    path.write_bytes(graph.SerializeToString())
    (tmp_path / "user" / "below").mkdir(parents=True)
    (tmp_path / "user" / "user.bin").write_bytes(whole)
    (tmp_path / "user" / "below" / "deep.bin").write_bytes(whole)
    return path


def sources(path: Path) -> WeightSources:
    user = path.parent.parent / "user"
    return WeightSources(path.parent, {"user.bin": user, "below/deep.bin": user})


def test_a_session_over_several_folders_gives_the_bytes_of_one_over_one(model: Path, tmp_path: Path) -> None:
    one = open_session(save(tiny_decoder(2), tmp_path / "one", external=True), SPEC)
    for graph in (model, model.read_bytes()):
        several = open_session(graph, SPEC, weights=sources(model))
        got, wanted = (session.run(None, feeds(2, [3, 1, 4])) for session in (several, one))
        assert [array.tobytes() for array in got] == [array.tobytes() for array in wanted]


def test_the_session_reads_the_users_own_file(model: Path, tmp_path: Path) -> None:
    """Were its bytes from another place, changing the file would change nothing."""
    before = open_session(model, SPEC, weights=sources(model)).run(None, feeds(2, [3, 1, 4]))[0]
    data = tmp_path / "user" / "user.bin"
    data.write_bytes(bytes(len(data.read_bytes())))
    after = open_session(model, SPEC, weights=sources(model)).run(None, feeds(2, [3, 1, 4]))[0]
    assert before.tobytes() != after.tobytes()


def test_files_are_named_from_a_folder_above_all_of_them(model: Path, tmp_path: Path) -> None:
    graph, folder = sources(model).in_one_folder(model.read_bytes())
    assert folder == tmp_path.resolve()
    named = {external_entry(tensor)[0] for tensor in external_tensors(onnx.ModelProto.FromString(graph))}
    assert named == {"graph/model.onnx.data", "user/user.bin", "user/below/deep.bin"}


def test_a_graph_without_external_weights_stays_as_it_is(tmp_path: Path) -> None:
    graph = tiny_decoder(1).SerializeToString()
    assert WeightSources(tmp_path, {"other": tmp_path}).in_one_folder(graph) == (graph, tmp_path)


def test_every_file_is_found_in_its_own_folder(model: Path, tmp_path: Path) -> None:
    found = weight_files(read_graph(model, elsewhere=sources(model).elsewhere), sources(model))
    assert found == {
        "model.onnx.data": tmp_path / "graph" / "model.onnx.data",
        "user.bin": tmp_path / "user" / "user.bin",
        "below/deep.bin": tmp_path / "user" / "below/deep.bin",
    }


def refuses(model: Path, says: str) -> None:
    with pytest.raises(ModelFileError, match=says) as caught:
        read_graph(model, elsewhere=sources(model).elsewhere)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_gone_from_the_users_folder_is_missed_in_one_line(model: Path, tmp_path: Path) -> None:
    (tmp_path / "user" / "user.bin").unlink()
    refuses(model, r"user\.bin does not exist; it is the model's own file: move it back there")
    with pytest.raises(ModelFileError, match="does not exist"):
        open_session(model, SPEC, weights=sources(model))


def test_a_folder_in_a_files_place_is_no_file(model: Path, tmp_path: Path) -> None:
    (tmp_path / "user" / "user.bin").unlink()
    (tmp_path / "user" / "user.bin").mkdir()
    refuses(model, "is missing")


def test_a_file_that_is_too_short_is_refused(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "user" / "user.bin"
    data.write_bytes(data.read_bytes()[:1000])
    refuses(model, r"user\.bin is truncated")


def test_a_link_out_of_the_users_folder_is_refused(model: Path, tmp_path: Path) -> None:
    """Though both are within the folder that the session is given."""
    data = tmp_path / "user" / "user.bin"
    data.rename(tmp_path / "graph" / "moved.bin")
    data.symlink_to(tmp_path / "graph" / "moved.bin")
    refuses(model, "link out of the model's folder")
    with pytest.raises(ModelFileError, match="link out of the model's folder"):
        open_session(model, SPEC, weights=sources(model))


@pytest.mark.parametrize("location", ["../graph/model.onnx.data", "/etc/hostname", "..\\graph\\model.onnx.data"])
def test_a_location_that_leaves_its_folder_is_refused(model: Path, tmp_path: Path, location: str) -> None:
    graph = onnx.load(model, load_external_data=False)
    set_external_entry(next(external_tensors(graph)), location, 0, 16)
    elsewhere = WeightSources(model.parent, {location: tmp_path / "user"})
    with pytest.raises(ModelFileError, match="must lie in the model's folder"):
        weight_files(graph, elsewhere)
    with pytest.raises(ModelFileError, match="must lie in the model's folder"):
        open_session(graph.SerializeToString(), SPEC, weights=elsewhere)
