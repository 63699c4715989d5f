"""Cells in fresh processes, one a model: a kernel that crashes or hangs takes its own cell with it, and no other."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grid.outcome import Outcome
from grid.replayed import Size

NOT_MADE = "the model could not be made"

#: A layout and a prefill recipe.
Part = tuple[str, str]


def run_parts(
    model: Path | tuple[str, str], parts: Sequence[Part], threads: int, size: Size, seconds: int
) -> Iterator[tuple[Part, Outcome]]:
    """Each part's outcome. model: a path, or an exporter and a weight format; seconds: that a part may take.

    What a crash or a hang leaves open is run again in another process, without its culprit.
    """
    named = {"path": str(model)} if isinstance(model, Path) else {"exporter": model[0], "weights": model[1]}
    left = list(parts)
    while left:
        job = {**named, "parts": left, "threads": threads, "size": asdict(size)}
        done, why = _work(job, seconds * len(left))
        yield from zip(left, done, strict=False)
        left = left[len(done) :]
        if left:
            culprits = len(left) if NOT_MADE in why else 1
            yield from ((part, Outcome("error", why)) for part in left[:culprits])
            left = left[culprits:]


def _work(job: dict[str, Any], seconds: int) -> tuple[list[Outcome], str]:
    """Outcomes of the first parts, in order, and why the process ended before the last of them."""
    with subprocess.Popen(
        [sys.executable, "-m", "grid.worker"],
        cwd=Path(__file__).resolve().parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            out, err = process.communicate(json.dumps(job), timeout=seconds)
            why = f"the process ended with {process.returncode}: {(err.strip().splitlines() or [''])[-1][:300]}"
        except subprocess.TimeoutExpired:
            process.kill()
            out, why = process.communicate()[0], "no end within the time"
    lines = [line for line in out.splitlines() if line.startswith("{")]
    return [Outcome.from_json(json.loads(line)) for line in lines], why
