"""Sizes are compared by what they stand for in a call: sums of queries, past and a constant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbpass.admission.calls.call import CALLS
from qbpass.admission.calls.fit import fit_extent
from qbpass.admission.extents import KEY_ROWS, QUERY_ROWS, Extent

WHOLE = st.integers(-50, 50)


@given(a=WHOLE, b=WHOLE, c=st.integers(-(1 << 40), 1 << 40))
def test_a_size_that_is_linear_in_the_call_is_read_off_four_calls(a: int, b: int, c: int) -> None:
    found = fit_extent([a * call.queries + b * call.past + c for call in CALLS])
    assert found == Extent.of(queries=a, past=b, **{"1": c})


@pytest.mark.parametrize(
    "size",
    [
        lambda call: call.queries * call.past,
        lambda call: call.queries**2,
        lambda call: max(call.queries, 4),
        lambda call: call.extent // 2,
    ],
)
def test_a_size_that_is_not_linear_in_the_call_has_no_extent(size) -> None:  # type: ignore[no-untyped-def]
    assert fit_extent([size(call) for call in CALLS]) is None


def test_a_size_that_is_unknown_in_one_call_has_no_extent() -> None:
    assert fit_extent([2, 3, None, 4]) is None


def test_the_key_rows_are_the_past_and_the_queries() -> None:
    assert fit_extent([call.extent for call in CALLS]) == KEY_ROWS
    assert fit_extent([call.queries for call in CALLS]) == QUERY_ROWS
    assert str(KEY_ROWS) == "past + queries"
    assert KEY_ROWS.at(queries=3, past=7) == 10


@given(st.integers(1, 1 << 40))
def test_a_constant_keeps_its_value(size: int) -> None:
    assert Extent.constant(size).value() == size
    assert KEY_ROWS.value() is None
