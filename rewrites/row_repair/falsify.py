"""Tries to prove that a unit's rows depend on how many there are: a row of a call against the row alone, byte for byte.

Alone is the unit as exported in a call of one row, which is what serial decoding runs. What is tried is the same unit
in calls of more rows, or its repaired form in calls of any number. A trial can only prove *false*, with a witness.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from qbpass.admission.dataflow import Flow
from qbpass.admission.row_units.unit import RowUnit
from qbpass.models.decoder import Decoder
from qbpass.models.errors import ModelFileError
from qbpass.models.session import SessionSpec, one_line, open_session
from qbpass.rewrites.row_repair.operands import SIZES, Array, Sizes, draw, take
from qbpass.rewrites.row_repair.rows_model import native_model, repaired_model

SEEDS = (0, 1)
#: Blocks of up to so many rows are tried with each row at each place; wider ones in one order.
TURNED = 8


@dataclass(frozen=True)
class RowWitness:
    """A row that differs: `row` is its place in a call of `queries` of the rows drawn (operands.py), turned by `turn`.

    Found again by `row_differs`.
    """

    node: str
    seed: int
    sizes: Sizes
    queries: int
    turn: int
    row: int
    max_abs_difference: float


@dataclass(frozen=True)
class RowTrial:
    """What one form of a kind was tried on. rows_per_call: None for the operator as exported.

    queries: the fewest rows of a call of which one differs; wider calls are then not tried.
    """

    rows_per_call: int | None
    rows: int
    differing: int
    witness: RowWitness | None = None

    @property
    def verdict(self) -> str:
        return "unknown" if self.witness is None else "false"

    @property
    def queries(self) -> int | None:
        return None if self.witness is None else self.witness.queries

    def summary(self) -> dict[str, Any]:
        return {
            "rows_per_call": self.rows_per_call,
            "verdict": self.verdict,
            "rows": self.rows,
            "rows_differing": self.differing,
            "witness": None if self.witness is None else asdict(self.witness),
        }


class UnitRows:
    """One unit on this machine: its rows alone, and in calls of several."""

    def __init__(self, frozen: Decoder, flow: Flow, unit: RowUnit, max_queries: int, spec: SessionSpec):
        self.frozen, self.flow, self.unit, self.max_queries, self.spec = frozen, flow, unit, max_queries, spec
        self._native = self._session(None)
        self._drawn: dict[tuple[int, Sizes], dict[str, Array]] = {}
        self._rows: dict[tuple[int, Sizes, int], dict[str, Array]] = {}

    def session(self, rows_per_call: int | None) -> Any:
        """The unit as exported, or repaired. Raises ModelFileError where ONNX Runtime does not load it."""
        return self._native if rows_per_call is None else self._session(rows_per_call)

    def differing(self, session: Any, seed: int, sizes: Sizes, queries: int, turn: int) -> Iterator[RowWitness | None]:
        """For each row of one call: how it differs from the row alone, or None."""
        drawn = self._operands(seed, sizes)
        order = [(turn + place) % queries for place in range(queries)]
        made = self._run(session, take(self.unit, drawn, order))
        for place, row in enumerate(order):
            alone = self._row(seed, sizes, row)
            gap = None
            for name, axis in self.unit.results:
                got = np.ascontiguousarray(np.take(made[name], [place], axis=axis))
                if got.tobytes() != alone[name].tobytes():
                    gap = max(gap or 0.0, _gap(got, alone[name]))
            yield None if gap is None else RowWitness(self.unit.seed, seed, sizes, queries, turn, place, gap)

    def _operands(self, seed: int, sizes: Sizes) -> dict[str, Array]:
        if (seed, sizes) not in self._drawn:
            self._drawn[seed, sizes] = draw(self.flow, self.unit, self.max_queries, seed, sizes)
        return self._drawn[seed, sizes]

    def _row(self, seed: int, sizes: Sizes, row: int) -> dict[str, Array]:
        if (seed, sizes, row) not in self._rows:
            self._rows[seed, sizes, row] = self._run(self._native, take(self.unit, self._operands(seed, sizes), [row]))
        return self._rows[seed, sizes, row]

    def _session(self, rows_per_call: int | None) -> Any:
        if rows_per_call is None:
            model = native_model(self.frozen, self.flow, self.unit)
        else:
            model = repaired_model(self.frozen, self.flow, self.unit, rows_per_call, self.max_queries)
        return open_session(model.SerializeToString(), self.spec, weights=self.frozen.weights)

    def _run(self, session: Any, feeds: dict[str, Array]) -> dict[str, Array]:
        names = [entry.name for entry in session.get_outputs()]
        try:
            return dict(zip(names, session.run(None, feeds), strict=True))
        except Exception as error:  # ONNX Runtime raises a family of private types
            raise ModelFileError(f"{self.unit.seed!r} could not be run alone: {one_line(error)}") from error


def try_rows(units: list[UnitRows], rows_per_call: int | None) -> RowTrial:
    """Calls of 1 .. max_queries rows (as exported: 2 ..) of each unit, stopping at the first number of rows that is
    falsified, and there after every unit's trials.
    """
    rows = differing = 0
    first: RowWitness | None = None
    sessions = [unit.session(rows_per_call) for unit in units]
    for queries in range(2 if rows_per_call is None else 1, units[0].max_queries + 1):
        for unit, session in zip(units, sessions, strict=True):
            for seed in SEEDS:
                for sizes in SIZES:
                    for turn in range(queries if queries <= TURNED else 1):
                        for witness in unit.differing(session, seed, sizes, queries, turn):
                            rows += 1
                            differing += witness is not None
                            first = first or witness
        if first is not None:
            break
    return RowTrial(rows_per_call, rows, differing, first)


def row_differs(
    frozen: Decoder, flow: Flow, unit: RowUnit, max_queries: int, witness: RowWitness, spec: SessionSpec
) -> bool:
    """A witness replayed: whether that row of that call of the exported operator still differs from the row alone."""
    rows = UnitRows(frozen, flow, unit, max_queries, spec)
    made = rows.differing(rows.session(None), witness.seed, witness.sizes, witness.queries, witness.turn)
    return list(made)[witness.row] is not None


def _gap(got: Array, want: Array) -> float:
    with np.errstate(invalid="ignore"):
        return float(np.nanmax(np.abs(got.astype(np.float64) - want.astype(np.float64)), initial=0.0))
