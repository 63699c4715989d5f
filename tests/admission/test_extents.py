"""Symbolic dimensions are compared by what they stand for, not by their names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbpass.admission.extents import KEY_ROWS, QUERY_ROWS, Extent, ExtentTable
from qbpass.models.contract import DecoderContract, KVPair

PAIRS = tuple(
    KVPair(layer, *(f"{when}{layer}{what}" for when in ("past", "present") for what in "kv"), 3, 64, 64, 1)
    for layer in range(2)
)
SHAPES = {
    "ids": (1, "s70"),
    "mask": (1, "s53"),
    **{f"past{layer}{what}": (1, 3, f"p{layer}{what}", 64) for layer in range(2) for what in "kv"},
    "present0k": (1, 3, "p0k + s70", 64),
    "present0v": (1, 3, "total", 64),
}
TABLE = ExtentTable.of(DecoderContract("ids", "mask", None, "logits", PAIRS, 10), SHAPES)


@pytest.mark.parametrize("dim", ["p0k + s70", "s70 + p1v", "p0v+s70", "s53", "total"])
def test_sums_of_any_layers_past_and_the_queries_are_the_key_rows(dim: str) -> None:
    assert TABLE.read(dim) == KEY_ROWS


@pytest.mark.parametrize(("dim", "size"), [("s70", 3), ("p1k", 7), ("2*s70", 6), ("p0k + s70 + 1", 11), (5, 5)])
def test_an_extent_gives_the_size_of_a_call(dim: str | int, size: int) -> None:
    extent = TABLE.read(dim)
    assert extent is not None
    assert extent.at(queries=3, past=7) == size


def test_a_symbol_the_contract_does_not_know_stands_for_itself() -> None:
    extent = TABLE.read("heads")
    assert extent is not None
    assert extent.at(3, 7) is None
    assert extent not in (QUERY_ROWS, KEY_ROWS)
    assert str(extent) == "heads"


def test_a_product_of_symbols_is_not_taken_for_their_sum() -> None:
    assert TABLE.read("s70*p0k") not in (QUERY_ROWS, KEY_ROWS, None)
    assert TABLE.read("s70 - 1") != QUERY_ROWS


@given(st.integers(1, 1 << 40))
def test_a_constant_keeps_its_value(size: int) -> None:
    assert Extent.constant(size).value() == size
    assert KEY_ROWS.value() is None
