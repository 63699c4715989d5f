"""Which kinds of operators a plan repairs, and in which form: those that a trial falsified, and no other.

The form is the one with the most rows a call that no trial falsifies; the emitted form itself is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from qbpass.admission.dataflow import Flow
from qbpass.admission.row_units.unit import RowUnit
from qbpass.models.decoder import Decoder
from qbpass.models.errors import ModelFileError
from qbpass.models.session import SessionSpec
from qbpass.rewrites.refused import RewriteRefused
from qbpass.rewrites.row_repair.candidates import RowKind, row_kinds, types_are_known
from qbpass.rewrites.row_repair.falsify import RowTrial, UnitRows, try_rows
from qbpass.rewrites.row_repair.first_columns import columns_left_out
from qbpass.rewrites.row_repair.repair import RowRepair
from qbpass.rewrites.row_repair.rows_model import missing_weights

Evidence = dict[str, Any]


def plan_repairs(
    frozen: Decoder,
    flow: Flow,
    blocked: Iterable[str],
    max_queries: int,
    spec: SessionSpec,
    *,
    force: Sequence[str] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[tuple[RowRepair, ...], dict[str, Evidence]]:
    """The repairs, and every kind's evidence by its label. blocked: the nodes of attention sites.

    force: labels or operators that are repaired though nothing falsifies them. Raises RewriteRefused where one of them
    is not in the graph, or where a falsified kind can't be repaired.
    """
    kinds = row_kinds(flow, frozenset(blocked))
    wanted = {kind.label for name in force for kind in _named(name, kinds)}
    repairs, evidence = [], {}
    for kind in kinds:
        progress(f"trying rows of {kind.label}")
        repair, evidence[kind.label] = _judge(frozen, flow, kind, max_queries, spec, kind.label in wanted)
        if repair is not None:
            repairs.append(repair)
    return tuple(repairs), evidence


def _named(name: str, kinds: Sequence[RowKind]) -> list[RowKind]:
    found = [kind for kind in kinds if kind.units and (kind.label == name or kind.label.split()[0].rstrip(",") == name)]
    if not found:
        known = ", ".join(sorted({kind.label.split()[0].rstrip(",") for kind in kinds if kind.units}))
        raise RewriteRefused(f"no operator {name!r} to force a repair of: rows can be split of {known}")
    return found


def _judge(
    frozen: Decoder, flow: Flow, kind: RowKind, max_queries: int, spec: SessionSpec, forced: bool
) -> tuple[RowRepair | None, Evidence]:
    """The kind's repair, if it has one, and its evidence."""
    evidence: Evidence = {"nodes": len(kind.nodes), "verdict": "unknown", "trials": []}
    chosen = _two(kind.units)
    reason = kind.reason or _untriable(frozen, flow, chosen)
    if reason is None:
        try:
            units = [UnitRows(frozen, flow, unit, max_queries, spec) for unit in chosen]
            exported = try_rows(units, None)
        except ModelFileError as error:
            reason = str(error)
    if reason is not None:
        if forced:
            raise RewriteRefused(f"{kind.label} can't be repaired: {reason}")
        return None, evidence | {"reason": reason}
    evidence["tried_on"] = [unit.seed for unit in chosen]
    left_out = columns_left_out([flow.node(name) for name in chosen[0].nodes])
    if left_out:
        evidence["columns_left_out"] = left_out
    evidence["trials"].append(exported.summary())
    evidence["verdict"] = exported.verdict
    if exported.queries is None and not forced:
        return None, evidence
    mixed = next((name for name, _ in chosen[0].rows if not _rows_alone(flow, name)), None)
    if mixed is not None:
        raise RewriteRefused(f"{kind.label} can't be split by rows: {mixed!r} grows with the rows before the call, too")
    rows_per_call = 1 if exported.queries is None else exported.queries - 1
    form = _form(kind, units, rows_per_call, evidence)
    return RowRepair(kind.label, kind.units, form, forced=exported.queries is None), evidence


def _form(kind: RowKind, units: list[UnitRows], rows_per_call: int, evidence: Evidence) -> int:
    """The most rows a call, up to `rows_per_call`, whose emitted form no trial falsifies."""
    for rows in range(rows_per_call, 0, -1):
        try:
            trial: RowTrial = try_rows(units, rows)
        except ModelFileError as error:
            raise RewriteRefused(f"{kind.label} can't be run for {rows} row(s) a call: {error}") from error
        evidence["trials"].append(trial.summary())
        if trial.witness is None:
            return rows
    assert trial.witness is not None
    witness = trial.witness
    raise RewriteRefused(
        f"{kind.label} is false on this machine even in calls of one row each: row {witness.row} of {witness.queries} "
        f"of {witness.node!r} differs by {witness.max_abs_difference:.3g}",
    )


def _two(units: Sequence[RowUnit]) -> list[RowUnit]:
    """The first unit and the last: a row can differ by one model's weights and not by another's."""
    return [units[0], units[-1]] if len(units) > 1 else list(units)


def _rows_alone(flow: Flow, tensor: str) -> bool:
    """Whether only the axis of rows follows the call's sizes."""
    followed = [extent for extent in flow.extents(tensor) or () if extent is None or extent.value() is None]
    return len(followed) == 1


def _untriable(frozen: Decoder, flow: Flow, units: Sequence[RowUnit]) -> str | None:
    if any(missing_weights(frozen, unit) for unit in units):
        return "its weights are not here to be tried"
    if not all(types_are_known(flow, unit) for unit in units):
        return "a type that is not known, or that numpy does not have"
    return None


def head_beside_repairs(head: Evidence, logits: str, repairs: Iterable[RowRepair]) -> Evidence:
    """The head's evidence. A head that is run a row at a time takes every row of its call, none is left out."""
    repaired = any(name == logits for repair in repairs for unit in repair.units for name in unit.nodes)
    if not repaired or head["form"] == "all":
        return head
    return {"form": "all", "verdict": head["verdict"], "reason": "its rows are run apart"}
