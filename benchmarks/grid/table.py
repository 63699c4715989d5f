"""The grid as Markdown: a table an exporter, a line a weight format and prefill recipe, a column a layout."""

from __future__ import annotations

from collections.abc import Mapping

from grid.axes import EXPORTERS, FORMATS, LAYOUTS, PREFILLS, REAL, SMOLLM2, WIDTHS, Cell, Model, models
from grid.outcome import Outcome

HEAD = """\
# The equality grid

Written by `python benchmarks/equality_grid.py --json F` and `--smollm2 --json F --markdown docs/grid.md` after it; do
not edit it. Every cell is a bundle of a tiny random decoder, replayed against the reference that its own recipe names:
random tokens in blocks of 1, 2, 3 and 4 rows at every alignment behind two prompts, each row of logits compared as
bytes, and two speculative requests whose drafts are wrong in part, endpoints compared.

| a cell says | it means |
|---|---|
| = 38 64 78 80 | every row is serial decoding's: so many rows in blocks of 1, 2, 3, 4; and both endpoints are |
| qb = 38 64 78 80 | the same, by the layout that auto chose |
| CODE | refused, with an [admission code](admission-codes.md) |
| false [n] | a probe proved the layout wrong here; witness n stands below the table |
| DIFFERS [n], ERROR [n] | a failure: a row or an endpoint is not the reference's, or something broke |

The last column is the control, plain speculation on the same model's native graph: rows in blocks of 2 to 4 that
differ, of all.

"""


def markdown(outcomes: Mapping[Cell, Outcome], conditions: str) -> str:
    """Of a whole grid. Raises KeyError where a cell is missing: none is left blank."""
    parts = [HEAD, conditions, "\n"]
    for exporter, what in EXPORTERS.items():
        parts.append(f"\n## {exporter}: {what}\n\n")
        notes: dict[str, int] = {}
        parts.append(
            f"| weights | prefill | {' | '.join(LAYOUTS)} | native |\n|---|---|{'---|' * (len(LAYOUTS) + 1)}\n"
        )
        for model in models():
            if model.exporter == exporter:
                parts += _lines(model, outcomes, notes)
        parts += ["\n", *_footnotes(notes)]
    parts.append("\n## SmolLM2-135M-Instruct\n\n")
    parts.append("| exporter | weights | prefill | layout | says | native |\n|---|---|---|---|---|---|\n")
    notes = {}
    for cell in REAL:
        outcome = outcomes[cell]
        axes = (cell.model.exporter.removeprefix(SMOLLM2), cell.model.weights, cell.prefill, cell.layout)
        parts.append(f"| {' | '.join((*axes, _cell(outcome, notes), _native([outcome])))} |\n")
    parts += ["\n", *_footnotes(notes), "\n## The weight formats\n\n"]
    parts += [f"- {name}: {what}\n" for name, what in FORMATS.items()]
    return "".join(parts)


def _footnotes(notes: Mapping[str, int]) -> list[str]:
    return [f"[{number}] {text}\n\n" for text, number in notes.items()]


def _lines(model: Model, outcomes: Mapping[Cell, Outcome], notes: dict[str, int]) -> list[str]:
    """A line a prefill recipe, or one where all say the same."""
    rows = {}
    for prefill in PREFILLS:
        found = {layout: outcomes[Cell(model, layout, prefill)] for layout in LAYOUTS}
        texts = (_cell(outcome, notes, layout == "auto") for layout, outcome in found.items())
        rows[prefill] = (*texts, _native(list(found.values())))
    if len(set(rows.values())) == 1:
        rows = {"each": rows[PREFILLS[0]]}
    return [f"| {model.weights} | {prefill} | {' | '.join(texts)} |\n" for prefill, texts in rows.items()]


def _cell(outcome: Outcome, notes: dict[str, int], chosen: bool = False) -> str:
    """chosen: the layout was."""
    if outcome.ending == "equal":
        counts = " ".join(str(outcome.equal.get(width, 0)) for width in WIDTHS)
        return f"{outcome.layout} = {counts}" if chosen else f"= {counts}"
    if outcome.ending == "refused" and outcome.codes:
        return ", ".join(outcome.codes)
    word = {"falsified": "false", "differs": "DIFFERS", "error": "ERROR", "refused": "ERROR"}[outcome.ending]
    return f"{word} [{notes.setdefault(' '.join(outcome.detail.split()), len(notes) + 1)}]"


def _native(found: list[Outcome]) -> str:
    """From the first bundle that was written: plain speculation is the same in all of them."""
    written = next((outcome for outcome in found if outcome.rows), None)
    if written is None:
        return "no bundle"
    rows, equal = (sum(counts.get(width, 0) for width in WIDTHS[1:]) for counts in (written.rows, written.native_equal))
    return f"{rows - equal} of {rows}"
