"""A large file's digest is read once, and again as soon as the file may be another one."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qbpass.models import weight_digests as module
from qbpass.models.errors import ModelFileError
from qbpass.models.weight_digests import kept_digest


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that were read, for files of any size and a clock that is an hour ahead."""
    files: list[Path] = []
    whole = module.file_digest

    def counted(path: Path) -> str:
        files.append(path)
        return whole(path)

    monkeypatch.setenv("QBPASS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "LEAST_BYTES", 1)
    monkeypatch.setattr(module, "file_digest", counted)
    ahead = time.time_ns() + 3600 * 10**9
    monkeypatch.setattr(module.time, "time_ns", lambda: ahead)
    return files


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "model.data"
    path.write_bytes(b"weights" * 1000)
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_is_read_once(data: Path, read: list[Path]) -> None:
    assert [kept_digest(data) for _ in range(3)] == [digest(data)] * 3
    assert read == [data]


def changes(data: Path) -> Iterator[None]:
    """Ways in which a file of the same path becomes another one."""
    times = data.stat()
    data.write_bytes(b"Weights" * 1000)
    yield
    data.write_bytes(b"wEights" * 1000)
    os.utime(data, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a tool that keeps times leaves it
    yield
    other = data.with_name("other")
    other.write_bytes(b"weIghts" * 1000)
    other.replace(data)
    yield


def test_a_changed_file_is_read_again(data: Path, read: list[Path]) -> None:
    kept_digest(data)
    for count, _ in enumerate(changes(data), 2):
        assert kept_digest(data) == digest(data)
        assert len(read) == count


def test_a_file_written_a_moment_ago_is_not_kept(data: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be written again within the same tick of the clock, and then has the same times."""
    written = data.stat().st_ctime_ns
    monkeypatch.setattr(module.time, "time_ns", lambda: written + 10**9)
    kept_digest(data)
    kept_digest(data)
    assert len(read) == 2


def test_a_small_file_is_always_read(data: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_BYTES", 10**6)
    kept_digest(data)
    kept_digest(data)
    assert len(read) == 2


@pytest.mark.parametrize("damage", [b"", b"no digest", b"\xff" * 64])
def test_a_damaged_entry_is_not_believed(data: Path, read: list[Path], tmp_path: Path, damage: bytes) -> None:
    kept_digest(data)
    (entry,) = (tmp_path / "cache" / "digests").iterdir()
    entry.write_bytes(damage)
    assert kept_digest(data) == digest(data)
    assert len(read) == 2


def test_a_missing_file_is_said_in_one_line(tmp_path: Path, read: list[Path]) -> None:
    with pytest.raises(ModelFileError, match="can't be read"):
        kept_digest(tmp_path / "none")
