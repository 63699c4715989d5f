"""No file from a stranger crashes `qbpass admit`, holds it for ten seconds, or makes it read what is not its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hostile_models import CASES

WORKER = Path(__file__).with_name("hostile_worker.py")
COMMANDS = {"exported": ["admit", "MODEL", "--as-exported"], "frozen": ["admit", "MODEL"]}
RUNS = [
    *((kind, "exported") for kind in ("bytes", "files", "graphs", "values")),
    *((kind, "frozen") for kind in ("bytes", "files")),
    *(pytest.param(kind, "frozen", marks=pytest.mark.slow) for kind in ("graphs", "values", "sizes")),
    pytest.param("sizes", "exported", marks=pytest.mark.slow),
]


def answers(command: list[str], names: list[str], folder: Path) -> dict[str, dict[str, Any]]:
    """What each case's command did; a worker that ends before its cases do is a crash of the case it was at."""
    found: dict[str, dict[str, Any]] = {}
    folder.mkdir()
    temporary = folder / "tmp"
    temporary.mkdir()
    while left := [name for name in names if name not in found]:
        (folder / "root").mkdir(exist_ok=True)
        questions = folder / "questions"
        questions.write_text("".join(json.dumps([name, *command]) + "\n" for name in left))
        environment = {**os.environ, "TMPDIR": str(temporary)}
        run = [sys.executable, str(WORKER), str(folder / "root"), str(questions)]
        ended = subprocess.run(run, capture_output=True, text=True, env=environment, check=False)
        current = None
        for line in map(json.loads, ended.stdout.splitlines()):
            if "started" in line:
                current = line["started"]
            elif current is not None:
                found[current] = line
        assert current is not None, ended.stderr
        if current not in found:
            found[current] = {"problem": f"the process ended with {ended.returncode}: {ended.stderr[-500:]}"}
    return found


def wrong(name: str, answer: dict[str, Any], mode: str) -> str | None:
    """Why an answer is not an honest one; None where it is."""
    if answer["problem"]:
        return str(answer["problem"])
    if answer["code"] not in getattr(CASES[name], mode):
        return f"exit code {answer['code']}: {answer['err']}"
    if answer["code"] == 2 and not (answer["err"].startswith("qbpass: ") and answer["err"].count("\n") == 1):
        return f"not one line: {answer['err']!r}"
    if any((ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0 for c in answer["out"] + answer["err"]):
        return f"control characters: {answer['err']!r}"
    return f"opened {answer['opened'][:3]}" if answer["opened"] else None


@pytest.mark.parametrize(("kind", "mode"), RUNS)
def test_a_hostile_model_is_answered_in_time_and_reads_no_file_of_others(kind: str, mode: str, tmp_path: Path) -> None:
    # A case without codes for a mode says nothing of it.
    names = [name for name in CASES if name.startswith(f"{kind}/") and getattr(CASES[name], mode) is not None]
    found = answers(COMMANDS[mode], names, tmp_path / "run")
    assert set(found) == set(names)
    assert {name: why for name, answer in found.items() if (why := wrong(name, answer, mode))} == {}


def test_there_are_hundreds_of_them_without_the_slow_ones() -> None:
    assert len([name for name in CASES if not name.startswith("sizes/")]) > 200
