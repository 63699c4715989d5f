"""Talking with the process that runs kernels for `qbpass probe` (probe_worker.py): a question, then lines of JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import IO, Any

from qbpass.models.errors import QbpassError

_CHILD = "from qbpass.probe_worker import work; work()"


def converse(question: Mapping[str, Any], take: Callable[[dict[str, Any]], None]) -> str | None:
    """Gives every message of a new worker to `take`. The signal that ended the worker; None where it came to its end.

    Raises the QbpassError that the worker met, RuntimeError where it met a bug.
    """
    with tempfile.TemporaryFile() as noise, _worker(noise) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(json.dumps(question))
        worker.stdin.close()
        for line in worker.stdout:
            message = json.loads(line)
            if "error" in message:
                raise _error(message["error"])
            take(message)
        code = worker.wait()
        noise.seek(0)
        said = noise.read().decode(errors="replace")
    if code > 0:
        raise RuntimeError(f"the worker of `qbpass probe` failed with exit code {code}:\n{said}")
    return _named(-code) if code else None


@contextmanager
def _worker(noise: IO[bytes]) -> Iterator[subprocess.Popen[str]]:
    # -P: a folder named onnxruntime in the current one is not the package. The path is this process's own.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-P", "-c", _CHILD]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=noise, env=environment, text=True
    ) as worker:
        try:
            yield worker
        finally:
            worker.kill()


def _error(told: dict[str, str]) -> QbpassError:
    """Of the worker's own kind, wherever it is defined."""
    kind = getattr(import_module(told["module"]), told["kind"])
    error: QbpassError = kind(told["message"])
    return error


def _named(number: int) -> str:
    name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
    return f"signal {number}, {name}"
