"""One step of the check in a process of its own: a kernel that crashes or hangs takes no other step with it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from qbpass.models.errors import QbpassError
from qbpass.rewrites.refused import RewriteRefused

#: refused: qbpass says why it will not, with a witness where something was proven wrong; that is an answer, no failure.
#: unequal: something promised to be the reference's was not. skipped: what the step needs is not on this machine.
Status = Literal["ok", "refused", "unequal", "failed", "skipped"]

Step = Callable[[Mapping[str, Any]], dict[str, Any]]


class Skipped(Exception):
    """A step that can't be asked for here, and why."""


class Unequal(Exception):
    """A comparison that came out wrong. found: its result."""

    def __init__(self, message: str, found: Mapping[str, Any]):
        super().__init__(message)
        self.found = dict(found)


@dataclass(frozen=True)
class Outcome:
    step: str
    model: str  # "" for the machine's own steps
    status: Status
    seconds: float
    message: str = ""
    found: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bad(self) -> bool:
        return self.status in ("failed", "unequal")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def answered(name: str, step: Step, question: Mapping[str, Any]) -> Outcome:
    """The step run here. Whatever it raises is an outcome."""
    started = time.perf_counter()
    status: Status = "ok"
    message, found = "", {}
    try:
        found = step(question)
    except Skipped as reason:
        status, message = "skipped", str(reason)
    except Unequal as unequal:
        status, message, found = "unequal", str(unequal), unequal.found
    except RewriteRefused as refused:
        status, message = "refused", str(refused)
        found = {"trials": [_plain(trial) for trial in refused.trials[-1:]]}
    except QbpassError as error:
        status, message = "failed", str(error)
    except Exception as error:  # of any library below: the check goes on, and says where
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {str(error)[:300]} ({Path(where.filename).name}:{where.lineno})"
        status, message = "failed", " ".join(text.split())
    return Outcome(name, str(question.get("name", "")), status, round(time.perf_counter() - started, 2), message, found)


def answered_apart(name: str, question: Mapping[str, Any], seconds: int) -> Outcome:
    """The step run by `python -m gpu_check.worker`, at most that long."""
    started = time.perf_counter()

    def failed(message: str) -> Outcome:
        taken = round(time.perf_counter() - started, 2)
        return Outcome(name, str(question.get("name", "")), "failed", taken, message)

    try:
        done = subprocess.run(
            [sys.executable, "-m", "gpu_check.worker", name],
            input=json.dumps(question),
            capture_output=True,
            text=True,
            timeout=seconds,
            cwd=Path(__file__).resolve().parents[1],
            check=False,
        )
    except subprocess.TimeoutExpired:
        return failed(f"no end within {seconds} s")
    told = [line for line in done.stdout.splitlines() if line.startswith('{"step"')]
    if told:
        return Outcome(**json.loads(told[-1]))
    if done.returncode < 0:
        return failed(f"the process crashed ({signal.Signals(-done.returncode).name})")
    return failed(f"the process ended with {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1][:300]}")


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))
