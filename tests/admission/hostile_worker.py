"""Runs hostile models through the command line, in a process of its own that may crash, hang or run out of memory.

    python hostile_worker.py FOLDER < CASES

CASES are lines `case command argument…`; MODEL in an argument is the case's model. For each case a line of JSON goes to
stdout when it starts and one when it ends. Files opened outside of where they may be opened are reported with the case.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from hostile_case import ELSEWHERE, OUTSIDE, SECRET
from hostile_models import CASES

CPU_SECONDS = 10  # of one command; processor time, for the machine may be busy
MEMORY = 6 * 2**30


#: What packages ask the system about itself when they are first used.
_OF_THE_SYSTEM = frozenset({"/etc/os-release", "/usr/lib/os-release", "/proc/cpuinfo", "/proc/meminfo"})


class TooLongError(BaseException):
    """No Exception: nothing on the way may catch it."""


def main(root: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _too_long)
    answers = os.fdopen(os.dup(1), "w")
    opened = _Opened(root)
    sys.addaudithook(opened.hear)
    _run("no case", ["--version"])  # what is imported once
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        folder = _prepared(root)
        print(json.dumps({"case": name, "started": True}), file=answers, flush=True)
        model = CASES[name].build(folder) or folder / "model.onnx"
        opened.allowed_model, opened.found = str(folder), []
        answer = _run(name, [str(model) if word == "MODEL" else word for word in arguments])
        opened.allowed_model = None
        answer["opened"] = opened.found
        print(json.dumps(answer), file=answers, flush=True)


def _prepared(root: Path) -> Path:
    """An empty folder for a model, and beside it files that nobody may open; the command runs in another folder."""
    for name in ("model", OUTSIDE, ELSEWHERE):
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir()
    for name in (OUTSIDE, ELSEWHERE):
        (root / name / SECRET).write_bytes(bytes(8192))
    os.chdir(root / ELSEWHERE)
    return root / "model"


def _run(name: str, arguments: list[str]) -> dict[str, Any]:
    from qbpass.cli import run

    out, err = io.StringIO(), io.StringIO()
    answer: dict[str, Any] = {"case": name, "code": None, "problem": None}
    start = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            answer["code"] = run(arguments)
    except TooLongError as error:
        answer["problem"] = f"took more than {CPU_SECONDS} s: {error}"
    except BaseException:
        answer["problem"] = traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return answer | {"out": out.getvalue(), "err": err.getvalue(), "seconds": time.process_time() - start}


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLongError("".join(traceback.format_stack(frame, 6)))


class _Opened:
    """Hears of every file that Python opens, and keeps those that have no business with the model."""

    def __init__(self, root: Path) -> None:
        self.allowed_model: str | None = None
        self.found: list[str] = []
        # Folders of Python and its packages, of this repository, and for temporary files.
        code = {sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(__file__).parents[2]), tempfile.gettempdir()}
        self._code = tuple(sorted({*code, *(entry for entry in sys.path if entry)}))
        self._kept = tuple(str(root / name) for name in (OUTSIDE, ELSEWHERE))

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or self.allowed_model is None or isinstance(arguments[0], int):
            return
        path = os.path.realpath(os.fsdecode(arguments[0]))
        inside = (self.allowed_model, *self._code)
        kept_from = any(path.startswith(folder + os.sep) for folder in self._kept)
        if not Path(path).exists():  # a name within a folder that is open, as rmtree has them
            return
        if path in _OF_THE_SYSTEM:
            return
        if path != os.devnull and (kept_from or not any(path.startswith(folder + os.sep) for folder in inside)):
            self.found.append(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
