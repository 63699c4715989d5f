"""The cache folder is the user's to choose, and is there when it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from qbpass.models.cache import cache_folder
from qbpass.models.errors import ModelFileError


def test_the_variable_chooses_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QBPASS_CACHE", str(tmp_path / "deep" / "cache"))
    assert cache_folder() == tmp_path / "deep" / "cache"
    assert cache_folder().is_dir()


def test_without_the_variable_it_lies_in_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QBPASS_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "qbpass"


def test_a_folder_that_can_not_be_made_is_an_error_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QBPASS_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelFileError, match="set QBPASS_CACHE"):
        cache_folder()
