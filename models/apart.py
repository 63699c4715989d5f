"""ONNX Runtime's optimizer in a process of its own, so that a stranger's graph can't take this one down.

The optimizer computes what a graph computes of constants, with the kernels of the session and no bounds. On graphs of a
few hundred bytes ONNX Runtime 1.32 divides by zero (SIGFPE: the smallest integer by -1), takes hours (products of
large constants) or all memory (constants of tensors that are all zero). Here that ends in one line.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

from qbpass.models.errors import ModelFileError, ProviderError, QbpassError
from qbpass.models.session import SessionSpec, one_line, open_session
from qbpass.models.weight_sources import WeightSources

# SmolLM2-135M (538 MB) takes 3 s of processor time, 1.3 GB of memory and 0.7 GB of disk.
LEAST_SECONDS, SECONDS_PER_BYTE = 10.0, 1 / 10e6
LEAST_MEMORY, LEAST_OUTPUT, TIMES_WEIGHTS = 4 * 2**30, 2**30, 4
CUDA_START = 60  # seconds for its libraries, whatever the graph
_PATIENCE = 20  # times the processor time, for a machine that is busy or waits for its disk
_ERRORS = {kind.__name__: kind for kind in (ModelFileError, ProviderError)}
Level = Literal["all", "basic"]
_PACKING = {"session.save_external_prepacked_constant_initializers": "1"}
_CHILD = "from qbpass.models.apart import answer; answer()"


@dataclass(frozen=True)
class Limits:
    """Seconds of processor time, bytes of memory and bytes of one file."""

    seconds: int
    memory: int
    output: int

    @classmethod
    def of(cls, size: int) -> Limits:
        """For a graph of that many bytes, weights included: many times what such graphs take."""
        return cls(
            round(LEAST_SECONDS + size * SECONDS_PER_BYTE),
            LEAST_MEMORY + TIMES_WEIGHTS * size,
            LEAST_OUTPUT + TIMES_WEIGHTS * size,
        )


def write_optimized(
    graph: Path,
    spec: SessionSpec,
    to: Path,
    limits: Limits,
    *,
    folder: Path | None = None,
    level: Level = "all",
    packed: bool = False,
) -> None:
    """Writes what the optimizer leaves of the graph in that file to `to` (and `<stem>.data` beside it).

    folder: where its external weights lie, if not beside it. level: as `open_session` has it.
    packed: nothing is optimized, and the weights are written as kernels pack them, too (packed_weights.py).
    Raises ModelFileError where the graph can't be loaded, crashes ONNX Runtime or exceeds the limits; ProviderError
    where the provider did not load.
    """
    question = {
        "graph": str(graph),
        "spec": asdict(spec),
        "to": str(to),
        "limits": asdict(limits),
        "folder": None if folder is None else str(folder),
        "level": level,
        "packed": packed,
    }
    # -P: a folder named onnxruntime in the current one is not the package. The path is this process's own.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _CHILD],
            input=json.dumps(question).encode(),
            capture_output=True,
            timeout=limits.seconds * _PATIENCE,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _gave_up(graph, f"it had not ended after {error.timeout:,.0f} s") from error
    if done.returncode < 0:
        raise _gave_up(graph, _died_of(-done.returncode, limits))
    told: dict[str, str] = json.loads((done.stdout.splitlines() or [b"{}"])[-1])  # a site may print at its start
    if "error" in told:
        raise _ERRORS[told["error"]](told["message"])
    if done.returncode or not told:
        raise RuntimeError(f"optimizing {graph} failed with exit code {done.returncode}:\n{done.stderr.decode()}")


def _gave_up(graph: Path, why: str) -> ModelFileError:
    return ModelFileError(f"ONNX Runtime can't optimize {graph}: {why}; the graph is damaged or made to do harm")


def _died_of(number: int, limits: Limits) -> str:
    limit = {
        "SIGXCPU": f"it took more than {limits.seconds:,} s of processor time",
        "SIGXFSZ": f"it wrote more than {limits.output / 2**30:,.1f} GiB",
    }
    name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
    return limit.get(name, f"it crashed (signal {number}, {name})")


def answer() -> None:
    """The child: reads the question from stdin, and answers on stdout."""
    with own_stdout() as answers:
        question = json.load(sys.stdin)
        _limit(Limits(**question["limits"]), question["spec"]["provider"])
        json.dump(_answer(question), answers)
    os._exit(0)  # nothing is left to do, and a session's end may take seconds


def _answer(question: dict[str, Any]) -> dict[str, str]:
    graph, folder = Path(question["graph"]), question["folder"]
    try:
        open_session(
            graph if folder is None else graph.read_bytes(),
            SessionSpec(**question["spec"]),
            weights=None if folder is None else WeightSources(Path(folder)),
            optimize=not question["packed"],
            level=question["level"],
            write_optimized=Path(question["to"]),
            entries=_PACKING if question["packed"] else {},
        )
    except MemoryError as error:
        return {"error": "ModelFileError", "message": f"ONNX Runtime could not load the graph: {one_line(error)}"}
    except QbpassError as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"written": question["to"]}


@contextlib.contextmanager
def own_stdout() -> Iterator[IO[str]]:
    """Where stdout led; whatever libraries print goes to stderr from now on."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as stream:
        os.dup2(2, 1)
        yield stream


def _limit(limits: Limits, provider: str) -> None:
    """Bounds this process, where the system has bounds. A GPU's provider reserves more memory than there is."""
    try:
        import resource
    except ImportError:  # Windows
        return
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and ONNX Runtime's message is no help
    bounds = {"RLIMIT_CORE": 0, "RLIMIT_CPU": limits.seconds, "RLIMIT_FSIZE": limits.output}
    if provider == "cpu":
        bounds["RLIMIT_DATA"] = limits.memory
    if provider == "cuda":
        bounds["RLIMIT_CPU"] += CUDA_START
    for name, bound in bounds.items():
        kind = getattr(resource, name)
        most = resource.getrlimit(kind)[1]
        within = bound if most == resource.RLIM_INFINITY else min(bound, most)
        with contextlib.suppress(ValueError, OSError):  # a system that has the bound by name alone
            resource.setrlimit(kind, (within, most))
