"""Malformed and hostile models by the hundred, made from small healthy ones. Deterministic; nothing is downloaded."""

from __future__ import annotations

from hostile_bytes import BYTES
from hostile_case import Case
from hostile_files import FILES
from hostile_mutations import MUTATIONS
from hostile_sizes import SIZES
from hostile_structure import GRAPHS
from hostile_values import VALUES

CASES: dict[str, Case] = {
    case.name: case for catalogue in (BYTES, FILES, GRAPHS, VALUES, SIZES, MUTATIONS) for case in catalogue.cases
}
