"""The cells of one model in this process, which work.py starts.

Reads a JSON object on stdin: path (a model), or exporter and weights; parts ([layout, prefill] each), threads, size.
Writes a line of JSON as each part ends: its outcome. Ends with 1 and a line on stderr where the model can't be made.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grid.axes import Model
from grid.models import model_file
from grid.outcome import Outcome
from grid.replayed import Size, codes_of, measured
from grid.work import NOT_MADE
from qbpass.models.errors import QbpassError
from qbpass.models.loading import load_decoder, load_graph
from qbpass.models.session import SessionSpec, one_line


def main() -> None:
    job = json.load(sys.stdin)
    try:
        path = Path(job["path"]) if "path" in job else model_file(Model(job["exporter"], job["weights"]))
    except Exception as error:  # of whatever tool makes the model: no cell has an ending, and the reason is one line
        sys.exit(f"{NOT_MADE}: {type(error).__name__}: {one_line(error)}")
    size = Size(**{**job["size"], "prompts": tuple(job["size"]["prompts"])})
    for layout, prefill in job["parts"]:
        try:
            decoder = load_decoder(path)
        except QbpassError as error:
            outcome = Outcome("refused", str(error), codes_of(error) or _interface_codes(path))
        else:
            outcome = measured(decoder, layout, prefill, SessionSpec(threads=job["threads"]), size)
        print(json.dumps(outcome.to_json()), flush=True)


def _interface_codes(path: Path) -> tuple[str, ...]:
    """Of a graph that can be read and is no decoder that qbpass runs."""
    try:
        return tuple(sorted({problem.code for problem in load_graph(path).interface.problems}))
    except QbpassError:
        return ()


if __name__ == "__main__":
    main()
