"""The outcomes for people: a line when a step ends, and a table of all at the end."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from gpu_check.outcome import Outcome

ABSENT = "–"


def line(outcome: Outcome) -> str:
    where = f"{outcome.model}: " if outcome.model else ""
    text = outcome.message or summary(outcome)
    return f"{outcome.status:8}{outcome.seconds:8.1f} s  {where}{outcome.step}{f': {text}' if text else ''}"


def report(outcomes: Sequence[Outcome]) -> str:
    """Every step, then the arms of every bundle, as text 160 columns wide."""
    stream = io.StringIO()
    console = Console(file=stream, width=160, markup=False, highlight=False, emoji=False)
    steps = _table("model", "step", "status", "seconds", "what was found")
    for each in outcomes:
        text = each.message or summary(each)
        steps.add_row(each.model or ABSENT, each.step, each.status, f"{each.seconds:.1f}", text)
    console.print(steps)
    arms = _table("model", "arm", "endpoints equal", "logit rows equal", "ratio to R", "tokens/round")
    for each in outcomes:
        for name, arm in (each.found.get("arms") or {}).items():
            arms.add_row(each.model, name, *_arm(arm))
    if arms.row_count:
        console.print(arms)
    return "\n".join(text.rstrip() for text in stream.getvalue().splitlines())


def _table(*columns: str) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def _arm(arm: Mapping[str, Any]) -> list[str]:
    ratio, tokens = arm["ratio_to_R"], arm["tokens_per_round"]
    return [
        f"{arm['equal']}/{arm['endpoints']}",
        f"{arm['logit_rows_equal']}/{arm['logit_rows']}" if arm["logit_rows"] else ABSENT,
        ABSENT if ratio is None else f"{ratio:.2f}",
        ABSENT if tokens is None else f"{tokens:.2f}",
    ]


def summary(outcome: Outcome) -> str:
    """What a step found, in a few words; "" for steps that only do."""
    found = outcome.found
    short = {
        "machine": lambda: f"{found['gpu'] or found['processor']}, onnxruntime {found['onnxruntime']}",
        "session": lambda: f"runs on {found['providers'][0]}",
        "export": lambda: f"{found['layers']} layers",
        "placement": lambda: (
            f"{len(found['strays'])} stray node(s); {sum(found['elsewhere'].values())} elsewhere in all, "
            f"{found['copies']} copies"
        ),
        "admission": lambda: f"{found['admitted']} of {found['sites']} sites admitted",
        "probes": lambda: ", ".join(f"{many} {verdict}" for verdict, many in sorted(found["verdicts"].items())),
        "tf32": lambda: (
            f"{'equal' if found['equal'] else 'another reference'}, {found['max_abs_difference']:.3g} apart"
        ),
        "rewrite": lambda: found["plan"][0],
        "device cache": lambda: f"{found['buffers']} buffers on {', '.join(found['devices'])}",
        "graphs": lambda: (
            f"{found['trial']['rows']} rows equal, {'captured' if found['captured'] else 'not captured'}, call times "
            + ", ".join(f"{ratio:.2f}" for ratio in found["ratio_to_plain"].values())
        ),
        "faults": lambda: f"{found['faults_found']} of {found['faults_injected']} found",
    }.get(outcome.step)
    return short() if short is not None and found else ""
