"""Every decoder under a folder: rewritten, and replayed against its own serial decoding, bit for bit.

    python benchmarks/replay_folder.py FOLDER [--layout L] [--prefill P] [--rows N] [--json F]

FOLDER holds an .onnx file, or folders as exporters write them, at any depth. A model ends equal, refused with a code,
or falsified with a witness; the exit code is 1 where one does not. Tokens are random ones of the model's vocabulary.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from grid.axes import LAYOUTS, WIDTHS
from grid.outcome import Outcome
from grid.replayed import Size
from grid.work import run_parts
from measuring.script import positive

from qbpass.json_file import write_json
from qbpass.models.errors import QbpassError
from qbpass.models.loading import find_graph
from qbpass.screen import Steps, table

HEADINGS = ("model", "layout", "prefill", "ending", "rows equal, by width", "native", "s")


def main() -> None:
    chosen = options()
    found = decoders(chosen.folder)
    if not found:
        sys.exit(f"{Path(sys.argv[0]).name}: no .onnx file under {chosen.folder}: give a folder with models")
    parts = [(layout, prefill) for layout in chosen.layout or ["auto"] for prefill in chosen.prefill or ["whole"]]
    size = Size(tuple(chosen.prompt or Size.prompts), chosen.rows, chosen.new_tokens, chosen.max_queries)
    results: list[tuple[str, str, str, Outcome]] = []
    with Steps() as steps:
        for index, path in enumerate(found):
            name = str(path.relative_to(chosen.folder))
            steps.count(name, index, len(found))
            ended = run_parts(path, parts, chosen.threads, size, chosen.seconds)
            results += [(name, layout, prefill, outcome) for (layout, prefill), outcome in ended]
    table([(heading, heading == "s") for heading in HEADINGS], [_row(*result) for result in results])
    endings = Counter(outcome.ending for *_, outcome in results)
    print(f"{len(results)} cells: {', '.join(f'{count} {ending}' for ending, count in sorted(endings.items()))}")
    if chosen.json is not None:
        write_json(chosen.json, {"cells": [_entry(*result) for result in results]})
    sys.exit(any(outcome.failed for *_, outcome in results))


def decoders(folder: Path) -> list[Path]:
    """The graph of every folder below: the one that its exporter means, else each file."""
    if folder.is_file():
        return [folder]
    found: list[Path] = []
    for each in sorted({file.parent for file in folder.rglob("*.onnx")}):
        try:
            found.append(find_graph(each))
        except QbpassError:  # several graphs, none of them with a decoder's usual name
            found += sorted(each.glob("*.onnx"))
    return list(dict.fromkeys(found))


def _row(name: str, layout: str, prefill: str, outcome: Outcome) -> list[str]:
    counts = " ".join(f"{outcome.equal.get(q, 0)}/{outcome.rows[q]}" for q in WIDTHS if q in outcome.rows)
    text = ", ".join(outcome.codes) or outcome.detail[:120]
    native = sum(outcome.rows.values()) - sum(outcome.native_equal.values())
    written = layout if outcome.layout in (None, layout) else f"{layout}: {outcome.layout}"
    ended = [outcome.ending, counts if outcome.ending == "equal" else f"{counts} {text}".strip()]
    return [name, written, prefill, *ended, f"{native} differ" if outcome.rows else "", f"{outcome.seconds:.1f}"]


def _entry(name: str, layout: str, prefill: str, outcome: Outcome) -> dict[str, Any]:
    return {"model": name, "layout_asked": layout, "prefill": prefill, **outcome.to_json()}


def options() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", type=Path, metavar="FOLDER", help="a folder with models, or an .onnx file")
    made.add_argument("--layout", action="append", choices=LAYOUTS, help="may be repeated (default: auto)")
    made.add_argument("--prefill", action="append", metavar="P", help="whole, one or chunks:N; may be repeated")
    made.add_argument(
        "--prompt", action="append", type=positive, metavar="N", help="a prompt of N tokens; may be repeated"
    )
    for name, default, what in (
        ("rows", Size.rows, "rows replayed behind each prompt"),
        ("new-tokens", Size.new_tokens, "tokens of each speculative request"),
        ("max-queries", Size.max_queries, "rows of a verification call"),
        ("threads", 2, "intra-op threads"),
        ("seconds", 600, "seconds a model and layout may take"),
    ):
        made.add_argument(f"--{name}", type=positive, default=default, metavar="N", help=f"{what} (default: {default})")
    made.add_argument("--json", type=Path, metavar="F", help="also write the results to F")
    return made.parse_args()


if __name__ == "__main__":
    main()
