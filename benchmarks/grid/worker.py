"""The cells of one model in this process. Run by equality_grid.py, in a fresh process a model: a kernel that crashes
takes one process with it.

Reads a JSON object on stdin: exporter, weights, cells ([layout, prefill] each), threads. Writes a line of JSON as each
cell ends: layout, prefill and its outcome. Ends with 1 and a line on stderr where the model can't be made.
"""

from __future__ import annotations

import json
import sys

from grid.axes import Model
from grid.models import model_file
from grid.outcome import Outcome
from grid.replayed import Size, codes_of, measured
from qbpass.models.errors import QbpassError
from qbpass.models.loading import load_decoder
from qbpass.models.session import SessionSpec, one_line


def main() -> None:
    job = json.load(sys.stdin)
    try:
        file = model_file(Model(job["exporter"], job["weights"]))
    except Exception as error:  # of whatever tool makes the model: no cell has an ending, and the reason is one line
        sys.exit(f"the model could not be made: {type(error).__name__}: {one_line(error)}")
    for layout, prefill in job["cells"]:
        try:
            decoder = load_decoder(file)
        except QbpassError as error:
            outcome = Outcome("refused", str(error), codes_of(error))
        else:
            outcome = measured(decoder, layout, prefill, SessionSpec(threads=job["threads"]), Size())
        print(json.dumps({"layout": layout, "prefill": prefill, **outcome.to_json()}), flush=True)


if __name__ == "__main__":
    main()
