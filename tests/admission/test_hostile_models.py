"""No file from a stranger crashes qbpass, holds it for ten seconds, or makes it read what is not its own.

Some 770 malformed and hostile models (hostile_*.py), each through the command line in a process that may die of it. A
command has ten seconds of processor time and six GiB: more than any of them takes, far less than what they ask for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hostile_case import ANY, REFUSED
from hostile_models import CASES

WORKER = Path(__file__).with_name("hostile_worker.py")
WORKERS = 2  # side by side
SILENCE = 150  # seconds of the clock without a word, after which a worker hangs in code that no timer interrupts
PROGRESS = "freezing into a temporary folder"

Answer = dict[str, Any]
COMMANDS = {
    "exported": ["admit", "MODEL", "--as-exported", "--json", "-"],
    "frozen": ["admit", "MODEL", "--threads", "1"],
    "table": ["admit", "MODEL", "--as-exported", "--all"],
    "page": ["admit", "MODEL", "--as-exported", "--html", "-"],
    "support": ["support", "MODEL", "--as-exported", "--backend", "ort-cpu", "--version", "1.24.0"],
    "rewrite": ["rewrite", "MODEL", "OUT", "--threads", "1"],
}
RUNS = [
    *((kind, "exported") for kind in ("bytes", "files", "graphs", "values", "mutated")),
    *((kind, "frozen") for kind in ("bytes", "files", "mutated")),
    *(pytest.param(kind, "frozen", marks=pytest.mark.slow) for kind in ("graphs", "values", "sizes")),
    pytest.param("sizes", "exported", marks=pytest.mark.slow),
]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs limits of processor time and memory")


def answers(command: str, names: Sequence[str], folder: Path) -> dict[str, Answer]:
    """What a command did with each case; of every WORKERS cases each goes to another process."""
    shares = [names[start::WORKERS] for start in range(min(WORKERS, len(names)))]
    places = [folder / str(number) for number in range(len(shares))]
    with ThreadPoolExecutor(WORKERS) as pool:
        told = pool.map(asked, [command] * len(shares), shares, places)
        return {name: answer for part in told for name, answer in part.items()}


def asked(command: str, names: Sequence[str], folder: Path) -> dict[str, Answer]:
    """A worker that ends before its cases do is a crash of the case it was at; another one goes on behind it."""
    (folder / "tmp").mkdir(parents=True)
    found: dict[str, Answer] = {}
    while left := [name for name in names if name not in found]:
        questions = folder / "questions"
        questions.write_text("".join(json.dumps([name, *arguments(command, name, folder)]) + "\n" for name in left))
        current = None
        with (folder / "stderr").open("wb") as errors:
            worker = subprocess.Popen(
                [sys.executable, str(WORKER), str(folder), str(questions)],
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(WORKER.parents[1])},
            )
        for line in map(json.loads, spoken(worker)):
            if "started" in line:
                current = line["started"]
            elif current is not None:
                found[current] = line
        complaint = (folder / "stderr").read_text(errors="replace")[-1000:]
        assert current is not None, complaint
        if current not in found:
            found[current] = {"problem": f"the process ended with {worker.returncode}: {complaint}"}
    return found


def spoken(worker: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """The lines of a worker, which is killed once it has been silent for too long."""
    assert worker.stdout is not None
    line = b"-"
    while line:
        patience = threading.Timer(SILENCE, worker.kill)
        patience.start()
        line = worker.stdout.readline()
        patience.cancel()
        if line:
            yield line
    worker.stdout.close()
    worker.wait()


def arguments(command: str, name: str, folder: Path) -> list[str]:
    out = str(folder / "out" / name.replace("/", "_"))
    return [out if word == "OUT" else word for word in COMMANDS[command]]


def wrong(name: str, answer: Answer, command: str) -> str | None:
    """Why an answer is not an honest one; None where it is."""
    if answer["problem"]:
        return str(answer["problem"])
    if answer["code"] not in codes(name, command):
        return f"exit code {answer['code']}: {answer['err'][-500:]}"
    said = [line for line in answer["err"].splitlines() if not line.startswith(PROGRESS)]
    if answer["code"] == 2 and not (len(said) == 1 and said[0].startswith("qbpass: ") and answer["err"].endswith("\n")):
        return f"not one line: {answer['err'][:500]!r}"
    if answer["code"] != 2 and said:
        return f"a line beside its report: {said[0][:500]!r}"
    if max(map(len, said), default=0) > 1100:
        return f"a line of {len(said[0]):,} characters"
    shown = answer["err"] + (answer["out"] if command not in ("exported", "page") else "")
    if any(unicodedata.category(character) in ("Cc", "Cf") and character != "\n" for character in shown):
        return f"control characters: {shown[:500]!r}"
    return f"opened {answer['opened'][:3]}" if answer["opened"] else None


def codes(name: str, command: str) -> frozenset[int]:
    case = CASES[name]
    if command == "frozen":
        return ANY if case.frozen is None else case.frozen
    return case.exported if command in ("exported", "table") or case.exported == REFUSED else ANY


def check(command: str, names: Sequence[str], folder: Path) -> dict[str, Answer]:
    found = answers(command, names, folder)
    assert set(found) == set(names)
    assert {name: why for name, answer in found.items() if (why := wrong(name, answer, command))} == {}
    return found


@pytest.mark.parametrize(("kind", "mode"), RUNS)
def test_a_hostile_model_is_answered_in_time_and_reads_no_file_of_others(kind: str, mode: str, tmp_path: Path) -> None:
    # A case without codes for a mode says nothing of it.
    names = [name for name in CASES if name.startswith(f"{kind}/") and getattr(CASES[name], mode) is not None]
    found = check(mode, names, tmp_path)
    for name, answer in found.items() if mode == "exported" else ():
        if answer["code"] != 2:  # names, numbers and all, the report is JSON
            report = json.loads(answer["out"], parse_constant=lambda token: pytest.fail(f"{token} is no JSON"))
            assert report["admitted"] == (answer["code"] == 0), name


@pytest.mark.parametrize("command", ["table", "page", "support"])
def test_other_commands_that_read_a_model_answer_hostile_ones_too(command: str, tmp_path: Path) -> None:
    start = list(COMMANDS).index(command)
    check(command, [name for name in CASES if not name.startswith("sizes/")][start::16], tmp_path)


def test_nothing_is_written_of_a_model_that_is_refused(tmp_path: Path) -> None:
    check("rewrite", [name for name, case in CASES.items() if case.exported == REFUSED][::16], tmp_path)
    assert list(tmp_path.glob("*/out/*")) == []


def test_names_in_reasons_are_made_visible(tmp_path: Path) -> None:
    refused = [name for name in CASES if name.endswith("_in_a_refusal")]
    assert len(refused) > 8
    for name, answer in check("table", refused, tmp_path).items():
        assert "attention.0" in answer["out"], name


def test_what_crashes_or_stops_onnx_runtime_is_one_line(tmp_path: Path) -> None:
    """And there is such a graph, or freezing in a process of its own would be for nothing."""
    ends = {"sizes/smallest_integer_by_minus_1": "SIGFPE", "sizes/products_of_large_constants": "processor time"}
    for name, answer in check("frozen", list(ends), tmp_path).items():
        assert ends[name] in answer["err"]


def test_there_are_hundreds_of_them_without_the_slow_ones() -> None:
    assert len([name for name in CASES if not name.startswith("sizes/")]) > 600
    assert sum(case.exported == REFUSED for case in CASES.values()) > 200
