"""A probe report for people: what was falsified first, kinds that answered alike in one row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from qbpass.screen import note, say, table

if TYPE_CHECKING:
    from qbpass.admission.probes.curve import Curve
    from qbpass.admission.probes.replay import Replay
    from qbpass.admission.probes.report import ProbedCase, ProbeReport

COLUMNS = [
    ("verdict", False),
    ("probe", False),
    ("graph", False),
    ("operator", False),
    ("shapes", False),
    ("nodes", True),
    ("trials", True),
    ("differ", True),
    ("where", False),
]
#: Attributes that choose a kernel, and what they are called in the table.
TELLING = {
    "alpha": "alpha",
    "transA": "transA",
    "transB": "transB",
    "bits": "bits",
    "block_size": "block",
    "accuracy_level": "level",
}
SHAPES_SHOWN = 2


def show_probes(report: ProbeReport, *, every_case: bool) -> None:
    """Falsified cases a row each, then what no trial changed, grouped unless every_case, then placement and curves."""
    rows = [_row(case) for case in report.falsified]
    rest = [case for case in report.cases if case.verdict == "unknown"]
    rows += [_row(case) for case in rest] if every_case else [_group_row(group) for group in _groups(rest)]
    if rows:
        table(COLUMNS, rows)
    for case in report.falsified:
        note(f"{case.operator}, {case.probe}: {case.witness}")
    if report.falsified:
        say("Replay a witness with `qbpass probe --replay FOLDER`; the folders are in the JSON and on stderr.")
    _show_left_out(report)
    if report.placement is not None:
        _show_placement(report.placement)
    for curve in report.curves:
        _show_curve(curve)
    say(
        f"{len(report.falsified)} of {len(report.cases)} questions are answered false; the others are unknown: "
        "trials prove nothing true."
    )


def show_replay(replay: Replay) -> None:
    """What a witness showed here."""
    witness, difference = replay.witness, replay.witness.difference
    facts = ", ".join(f"{name} {value}" for name, value in witness.facts.items())
    say(f"{witness.operator} on {witness.machine.get('provider')}: “{witness.question}” ({facts})")
    say(
        f"recorded: output {difference.output} at {list(difference.index)}: {difference.alone.value} "
        f"({difference.alone.bytes}) alone, {difference.together.value} ({difference.together.bytes}) together; "
        f"{difference.differing} of {difference.elements} elements differ"
    )
    for line in replay.unlike:
        say(f"  {line}")
    same_bytes = "the recorded bytes" if replay.bytes_as_recorded else "other bytes than the recorded"
    if replay.reproduced:
        say(f"reproduced: the two sides differ here, with {same_bytes}; it is false here")
    else:
        say(f"not reproduced: the two sides are equal here, with {same_bytes}; that proves nothing true")


def _row(case: ProbedCase) -> list[str]:
    return [
        case.verdict,
        case.probe,
        case.graph,
        _operator(case),
        _shapes(case),
        str(case.count),
        str(case.trials),
        str(case.differing) if case.trials else "",
        _where(case),
    ]


def _operator(case: ProbedCase) -> str:
    told = [f"{short} {case.attributes[name]:g}" for name, short in TELLING.items() if name in case.attributes]
    elsewhere = sorted(provider for provider in case.ran_on if provider != case.provider)
    ran = f" [on {', '.join(elsewhere)}]" if elsewhere else ""
    return case.operator + (f" ({', '.join(told)})" if told else "") + ran


def _shapes(case: ProbedCase) -> str:
    named = zip(case.shapes["inputs"], case.dtypes, strict=False)  # results' types come behind the operands'
    telling = [shape or "scalar" for shape, dtype in named if not dtype.startswith("int")]
    shown = telling[:SHAPES_SHOWN]
    more = " …" if len(telling) > SHAPES_SHOWN else ""
    return " ".join(f"({shape})" for shape in shown) + more


def _where(case: ProbedCase) -> str:
    """Where it differs, in a few words; why nothing ran, where nothing did."""
    if not case.trials:
        return f"not run: {(case.reason or 'no trial')[:60]}"
    detail = case.detail
    if case.verdict == "unknown":
        return ""
    if "residues" in detail:
        rule = detail["explained_by"]
        if rule is not None:
            return f"n % {rule['modulus']} in {rule['residues']}"
        return f"{detail['keys_differing']} of {detail['keys_tried']} lengths"
    return f"{_listed(detail.get('widths_differing', []))} rows"


def _groups(cases: Iterable[ProbedCase]) -> list[list[ProbedCase]]:
    """Cases without findings of one probe, one graph and one way to have run."""
    groups: dict[tuple[Any, ...], list[ProbedCase]] = {}
    for case in cases:
        groups.setdefault((case.probe, case.graph, bool(case.trials)), []).append(case)
    return list(groups.values())


def _group_row(cases: Sequence[ProbedCase]) -> list[str]:
    first = cases[0]
    operators = dict.fromkeys(case.operator for case in cases)
    trials = sum(case.trials for case in cases)
    return [
        "unknown",
        first.probe,
        first.graph,
        _listed(operators, most=5),
        f"{len(cases)} kind(s)",
        str(sum(case.count for case in cases)),
        str(trials),
        "0" if trials else "",
        _where(first),
    ]


def _listed(names: Iterable[Any], most: int = 8) -> str:
    texts = [str(name) for name in names]
    return ", ".join(texts[:most]) + (f", … ({len(texts)})" if len(texts) > most else "")


def _show_left_out(report: ProbeReport) -> None:
    reasons: dict[str, dict[str, int]] = {}
    for kind in report.left_out:
        nodes = reasons.setdefault(kind.reason, {})
        nodes[kind.operator] = nodes.get(kind.operator, 0) + kind.count
    for reason, nodes in reasons.items():
        say(f"left out: {', '.join(f'{count} {operator}' for operator, count in nodes.items())}: {reason}")


def _show_placement(placement: dict[str, Any]) -> None:
    for name in ("assigned", "executed"):
        found = placement[name]
        if found is None:
            say(f"{name}: this ONNX Runtime does not record it")
            continue
        parts = [f"{provider} {entry['nodes']} node(s)" for provider, entry in found.items()]
        say(f"{name}: {', '.join(parts)}")
    elsewhere: dict[str, dict[str, int]] = {}
    for node in placement["elsewhere"]:
        operators = elsewhere.setdefault(node["provider"], {})
        operators[node["operator"]] = operators.get(node["operator"], 0) + 1
    for provider, operators in elsewhere.items():
        counts = ", ".join(f"{count} {operator}" for operator, count in operators.items())
        say(f"not on {placement['asked']}: {provider} has {counts}")


def _show_curve(curve: Curve) -> None:
    columns = [("rows", True), ("median ms", True), ("C(q)/C(1)", True), ("quartiles", False)]
    rows = [[str(p.queries), f"{p.ms:.2f}", f"{p.ratio:.2f}", f"{p.low:.2f}–{p.high:.2f}"] for p in curve.points]
    say(f"a call of the {curve.graph} graph behind {curve.past} rows, median and quartiles of {curve.rounds} rounds:")
    table(columns, rows)
