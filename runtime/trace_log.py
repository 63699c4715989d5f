"""What a request did, as JSON lines: one when it begins, one a round, one when it ends.

It is told what happened and is never asked: no decision, no flag and no graph depends on whether there is one.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import IO, Any

from qbpass.runtime.policy import Round
from qbpass.runtime.verification import Verdict


class TraceLog:
    """Writes to a text stream, a line at a time, flushed: what was written is whole whenever the process ends."""

    def __init__(self, stream: IO[str]):
        self._stream = stream
        self._request = 0

    def begin(self, prompt_tokens: int, limit: int) -> None:
        self._request += 1
        self._write("begin", prompt_tokens=prompt_tokens, limit=limit)

    def round(self, round_: Round, verdict: Verdict) -> None:
        self._write("round", **{**asdict(round_), **asdict(verdict)})

    def end(self, stop_reason: str, counters: dict[str, int]) -> None:
        self._write("end", stop_reason=stop_reason, **counters)

    def failed(self, error: BaseException) -> None:
        self._write("failed", error=type(error).__name__)

    def _write(self, event: str, **values: Any) -> None:
        print(json.dumps({"event": event, "request": self._request, **values}), file=self._stream, flush=True)
