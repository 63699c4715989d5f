"""C(q)/C(1): what a call of q rows costs, in terms of a call of one. A drafting policy needs it; it is timing, so it is
one machine's at one moment, and is no answer about bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from qbpass.admission.calls.call import Call
from qbpass.admission.probes.feeds import decoder_feeds
from qbpass.admission.probes.fills import aligned
from qbpass.admission.probes.interleaved import interleave
from qbpass.models.decoder import Decoder
from qbpass.models.errors import ModelFileError
from qbpass.models.session import SessionSpec, one_line, open_session

WIDEST = 8
ROUNDS = 9

Progress = Callable[[str, int, int], None]


class Point(BaseModel):
    """queries: rows of a call; ms: its median; ratio: the median over rounds of C(q)/C(1); low, high: its quartiles."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    queries: int
    ms: float
    ratio: float
    low: float
    high: float


class Curve(BaseModel):
    """graph: what was called; past: rows in its KV cache."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    graph: str
    past: int
    rounds: int
    points: tuple[Point, ...]


def decoder_calls(decoder: Decoder, spec: SessionSpec, past: int, widest: int = WIDEST) -> dict[int, Callable[[], Any]]:
    """Calls of 1 .. widest rows behind `past`, everything bound beforehand.

    Raises ModelFileError where one can't be run.
    """
    session = open_session(decoder.path, spec, weights=decoder.weights)
    device = "cuda" if spec.provider == "cuda" else "cpu"
    calls = {}
    for queries in range(1, widest + 1):
        binding = session.io_binding()
        for name, value in decoder_feeds(decoder, Call(queries, past)).items():
            binding.bind_cpu_input(name, aligned(value))
        for output in session.get_outputs():
            binding.bind_output(output.name, device)
        calls[queries] = _bound(session, binding)
        try:
            calls[queries]()
        except Exception as error:  # ONNX Runtime raises a family of private types
            raise ModelFileError(f"a call of {queries} rows behind {past} fails ({one_line(error)})") from error
    return calls


def _bound(session: Any, binding: Any) -> Callable[[], Any]:
    return lambda: session.run_with_iobinding(binding)


def measure_curve(
    graph: str,
    past: int,
    calls: Mapping[int, Callable[[], Any]],
    progress: Progress,
    before: Mapping[int, Callable[[], Any]] | None = None,
    rounds: int = ROUNDS,
) -> Curve:
    """Times calls in turns. calls: rows -> a call; 1 is among them. before: what puts a call back where it starts."""
    named = {str(queries): call for queries, call in calls.items()}
    put_back = {str(queries): call for queries, call in (before or {}).items()}
    timings = interleave(named, rounds, before=put_back, progress=progress)
    points = []
    for queries in sorted(calls):
        ratio = timings.ratio(str(queries), "1")
        points.append(
            Point(
                queries=queries,
                ms=timings.median_ms(str(queries)),
                ratio=ratio.median,
                low=ratio.low,
                high=ratio.high,
            )
        )
    return Curve(graph=graph, past=past, rounds=rounds, points=tuple(points))
