"""The equality grid: exporters x weight formats x layouts x prefill recipes x rows of a block, bit for bit.

    python benchmarks/equality_grid.py [--exporter E] [--weights W] [--layout L] [--prefill P] [--json F] [--markdown F]

The options of axes may be repeated, and stand for the whole axis where they are left out. A cell ends equal, refused
with a code, or falsified with a witness; the exit code is 1 where one does not. Models are made once and kept in
qbpass's cache folder: that needs the extras export and genai. --json: cells of an earlier run that are not run now stay
in F.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

from grid.axes import EXPORTERS, FORMATS, LAYOUTS, PREFILLS, REAL, WIDTHS, Cell, Model, cells
from grid.outcome import Outcome
from grid.replayed import Size
from grid.table import markdown
from grid.work import run_parts

from qbpass.json_file import write_json
from qbpass.models.processor import processor_name
from qbpass.screen import Steps, table

SECONDS_A_CELL = 600


def main() -> None:
    chosen = options()
    wanted = list(REAL) if chosen.smollm2 else cells(chosen.exporter, chosen.weights, chosen.layout, chosen.prefill)
    outcomes = _read(chosen.json) if chosen.json is not None and chosen.json.is_file() else {}
    if chosen.missing:
        wanted = [cell for cell in wanted if cell not in outcomes]
    ended: dict[Cell, Outcome] = {}
    with Steps() as steps:
        for model, group in groupby(wanted, lambda cell: cell.model):
            of_model = list(group)
            steps.count(model.name, len(ended), len(wanted))
            size = Size(rows=12) if chosen.smollm2 else Size()
            parts = [(cell.layout, cell.prefill) for cell in of_model]
            named = (model.exporter, model.weights)
            for (layout, prefill), outcome in run_parts(named, parts, chosen.threads, size, SECONDS_A_CELL):
                ended[Cell(model, layout, prefill)] = outcome
            outcomes |= ended
            if chosen.json is not None:
                _write(chosen.json, outcomes, chosen.threads)
    _show(ended)
    if chosen.markdown is not None:
        chosen.markdown.write_text(markdown(outcomes, _conditions_text(chosen.threads)), encoding="utf-8")
    sys.exit(any(outcome.failed for outcome in ended.values()))


def _show(ended: dict[Cell, Outcome]) -> None:
    rows = []
    for cell, outcome in ended.items():
        counts = " ".join(f"{outcome.equal.get(q, 0)}/{outcome.rows[q]}" for q in WIDTHS if q in outcome.rows)
        text = counts if outcome.ending == "equal" else f"{', '.join(outcome.codes)} {outcome.detail}"[:150]
        rows.append([*cell.model.name.split("/"), cell.layout, cell.prefill, outcome.ending, text.strip()])
    headings = ("exporter", "weights", "layout", "prefill", "ending", "rows equal, by width")
    table([(heading, False) for heading in headings], rows)
    endings = Counter(outcome.ending for outcome in ended.values())
    print(f"{len(ended)} cells: {', '.join(f'{count} {ending}' for ending, count in sorted(endings.items()))}")


def _write(file: Path, outcomes: dict[Cell, Outcome], threads: int) -> None:
    entries = [
        {**vars(cell.model), "layout_asked": cell.layout, "prefill": cell.prefill, **outcome.to_json()}
        for cell, outcome in sorted(outcomes.items())
    ]
    write_json(file, {**_conditions(threads), "cells": entries})


def _read(file: Path) -> dict[Cell, Outcome]:
    entries = json.loads(file.read_text(encoding="utf-8"))["cells"]
    return {
        Cell(Model(e["exporter"], e["weights"]), e["layout_asked"], e["prefill"]): Outcome.from_json(e) for e in entries
    }


def _conditions(threads: int) -> dict[str, Any]:
    import onnxruntime as ort

    return {"processor": processor_name(), "onnxruntime": ort.__version__, "threads": threads}


def _conditions_text(threads: int) -> str:
    seen = _conditions(threads)
    return f"Measured on {seen['processor']}, onnxruntime {seen['onnxruntime']}, {threads} thread(s)."


def options() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, choices in (("exporter", EXPORTERS), ("weights", FORMATS), ("layout", LAYOUTS), ("prefill", PREFILLS)):
        made.add_argument(f"--{name}", action="append", choices=list(choices), default=[], help="may be repeated")
    made.add_argument("--smollm2", action="store_true", help="run the cells of SmolLM2-135M-Instruct in their place")
    made.add_argument("--missing", action="store_true", help="run only cells that --json's file does not hold yet")
    made.add_argument("--threads", type=int, default=1, metavar="N", help="intra-op threads (default: %(default)s)")
    made.add_argument("--json", type=Path, metavar="F", help="write the cells to F, with those of an earlier run")
    made.add_argument(
        "--markdown", type=Path, metavar="F", help="write the table to F; --json's cells must be complete"
    )
    return made.parse_args()


if __name__ == "__main__":
    main()
