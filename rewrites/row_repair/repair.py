"""What a plan says of operators whose rows are run apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qbpass.admission.row_units.unit import RowUnit

#: What names of emitted nodes begin with; behind it stands the number of the unit among all units of a plan.
REPAIR_SCOPE = "qbpass/repair"


@dataclass(frozen=True)
class RowRepair:
    """Every unit of one kind, in the active phases run for at most `rows_per_call` rows of a call at a time.

    kind: its label, under which the plan keeps the evidence. forced: asked for though no trial falsified it.
    """

    kind: str
    units: tuple[RowUnit, ...]
    rows_per_call: int = 1
    forced: bool = False

    def slots(self, max_queries: int) -> int:
        """How many times each unit stands in a graph for calls of up to `max_queries` rows."""
        return -(-max_queries // self.rows_per_call)


def unit_kinds(repairs: Iterable[RowRepair]) -> dict[str, str]:
    """The kind of each unit by its number."""
    kinds = (repair.kind for repair in repairs for _ in repair.units)
    return {str(number): kind for number, kind in enumerate(kinds)}
