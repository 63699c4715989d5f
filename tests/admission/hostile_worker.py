"""Runs hostile models through the command line, in a process of its own that may crash, hang or run out of memory.

    python hostile_worker.py FOLDER QUESTIONS

QUESTIONS is a file with a JSON list a line: case, command, argument, ... The argument MODEL is the case's model. For
each a line of JSON goes to stdout when it starts and one when it ends, which names the files that were opened and are
none of the model's: by Python (an audit hook hears of them), or, of the files that are kept from everyone, by anybody
(inotify).
"""

from __future__ import annotations

import contextlib
import ctypes
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
OPTIMIZER_SECONDS = 2.0  # the least that freezing is given here: hopeless graphs are given up sooner
MEMORY = 6 * 2**30
IN_OPEN = 0x20  # linux/inotify.h


class TooLongError(BaseException):
    """No Exception: nothing on the way may catch it."""


def main(root: Path, questions: Path) -> None:
    from qbpass.models import apart

    apart.LEAST_SECONDS = OPTIMIZER_SECONDS
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _too_long)
    _keep_files(root)
    opened, watched = _Opened(root), _Watched([root / name / SECRET for name in (OUTSIDE, ELSEWHERE)])
    sys.addaudithook(opened.hear)
    _run(["admit", "--help"])  # what is imported once
    for line in questions.read_text().splitlines():
        name, *arguments = json.loads(line)
        print(json.dumps({"started": name}), flush=True)
        shutil.rmtree(root / "model", ignore_errors=True)
        (root / "model").mkdir()
        model = CASES[name].build(root / "model") or root / "model" / "model.onnx"
        opened.begin(root / "model")
        answer = _run([str(model) if word == "MODEL" else word for word in arguments])
        print(json.dumps(answer | {"opened": [*opened.end(), *watched.opened()]}), flush=True)


def _keep_files(root: Path) -> None:
    """Files that nobody may open: beside the model's folder, and in the one that the commands run in."""
    for name in (OUTSIDE, ELSEWHERE):
        (root / name).mkdir(exist_ok=True)
        (root / name / SECRET).write_bytes(bytes(8192))
    os.chdir(root / ELSEWHERE)


def _run(arguments: list[str]) -> dict[str, Any]:
    from qbpass.cli import run

    out, err = io.StringIO(), io.StringIO()
    answer: dict[str, Any] = {"code": None, "problem": None}
    start = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            answer["code"] = run(arguments)
    except TooLongError as error:
        answer["problem"] = f"took more than {CPU_SECONDS} s of processor time, in\n{error}"
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
        self._model: str | None = None
        self._found: list[str] = []
        # Folders of Python and its packages, of this repository, and for temporary files.
        code = {sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(__file__).parents[2]), tempfile.gettempdir()}
        self._code = tuple(sorted({*code, *(entry for entry in sys.path if entry)}))
        self._kept = tuple(str(root / name) for name in (OUTSIDE, ELSEWHERE))

    def begin(self, model: Path) -> None:
        self._model, self._found = str(model), []

    def end(self) -> list[str]:
        self._model = None
        return self._found

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or self._model is None or isinstance(arguments[0], int):
            return
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if path in _OF_THE_SYSTEM or not Path(path).exists():  # names within an open folder, as rmtree has them
            return
        if _is_in(path, self._kept) or not _is_in(path, (self._model, *self._code)):
            self._found.append(path)


_OF_THE_SYSTEM = (os.devnull, "/usr/lib/os-release", "/etc/os-release")


def _is_in(path: str, folders: tuple[str, ...]) -> bool:
    return any(path.startswith(folder + os.sep) for folder in folders)


class _Watched:
    """Files that nobody may open, whatever language it is written in and whatever process it runs in. Linux only."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = {}
        self._handle = None
        if sys.platform != "linux":
            return
        library = ctypes.CDLL(None, use_errno=True)
        self._handle = library.inotify_init1(os.O_NONBLOCK)
        self._paths = {library.inotify_add_watch(self._handle, os.fsencode(p), IN_OPEN): str(p) for p in paths}
        if self._handle < 0 or min(self._paths) < 0:
            raise OSError(ctypes.get_errno(), "inotify has no room for a watch")

    def opened(self) -> list[str]:
        """Those opened since the last question."""
        try:
            events = os.read(self._handle, 2**16) if self._handle is not None else b""
        except BlockingIOError:
            return []
        # struct inotify_event of a watched file: int wd; uint32_t mask, cookie, len, without a name.
        return [self._paths[int.from_bytes(events[at : at + 4], sys.byteorder)] for at in range(0, len(events), 16)]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
