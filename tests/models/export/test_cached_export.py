"""A builtin model is exported once, until something that goes into its export changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from qbpass.models.errors import ExportError
from qbpass.models.export import cached, cached_export


@pytest.fixture
def writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An empty cache, and a record of the opsets written into it."""
    opsets: list[int] = []

    def write(_loaded: object, opset: int, folder: Path, _progress: object) -> None:
        opsets.append(opset)
        (folder / "model.onnx").write_bytes(b"graph")

    monkeypatch.setenv("QBPASS_CACHE", str(tmp_path))
    monkeypatch.setattr(cached, "write_export", write)
    return opsets


def test_the_second_call_writes_nothing(writes: list[int]) -> None:
    assert cached_export("builtin:tiny") == cached_export("builtin:tiny", "eager", 18)
    assert writes == [18]


def test_each_form_and_opset_has_its_own(writes: list[int]) -> None:
    folders = {cached_export("builtin:tiny", "eager", 18), cached_export("builtin:tiny", "eager", 19)}
    folders |= {cached_export("builtin:tiny", "sdpa"), cached_export("builtin:tiny", "onnx")}
    assert len(folders) == 4
    assert writes == [18, 19, 20, 23]


def test_another_version_of_torch_is_another_export(writes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    first = cached_export("builtin:tiny")
    monkeypatch.setattr(cached.metadata, "version", lambda package: "0.0.0")
    assert cached_export("builtin:tiny") != first
    assert writes == [18, 18]


def test_other_export_code_is_another_export_and_a_comment_is_not(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text("x = 1\n")
    before = cached._code(file)
    file.write_text("# one\nx  =  1\n")
    assert cached._code(file) == before
    file.write_text("x = 2\n")
    assert cached._code(file) != before


def test_one_that_another_process_made_meanwhile_is_used(
    writes: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write = cached.write_export

    def overtaken(loaded: object, opset: int, folder: Path, progress: object) -> None:
        write(loaded, opset, folder, progress)
        other = folder.parent / folder.name[1:].rpartition(".")[0]
        other.mkdir()
        (other / "model.onnx").write_bytes(b"other")

    monkeypatch.setattr(cached, "write_export", overtaken)
    folder = cached_export("builtin:tiny")
    assert (folder / "model.onnx").read_bytes() == b"other"
    assert list(folder.parent.iterdir()) == [folder]


def test_only_builtin_sources_are_kept(writes: list[int], tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="builtin"):
        cached_export(str(tmp_path))
    assert writes == []
