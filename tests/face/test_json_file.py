"""JSON results appear whole or not at all."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from qbpass.json_file import write_json


def test_what_is_written_can_be_read_back_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "r.json"
    write_json(path, {"a": [1, None, "é"]})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": [1, None, "é"]}
    assert [file.name for file in path.parent.iterdir()] == ["r.json"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o400


def test_a_value_json_does_not_have_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})
    assert path.read_text() == "old"


def test_a_dash_is_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    write_json(Path("-"), {"a": 1})
    assert json.loads(capsys.readouterr().out) == {"a": 1}
