"""Every row of a block reads a prefix it can bear, in no more segments than the graph was made with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbpass.rewrites.extents import EVERY_ROW_EXACT, NO_TAIL_EFFECT, ExtentRule, segment_extents


@st.composite
def rules(draw: Callable[..., int]) -> ExtentRule:
    modulus = draw(st.sampled_from([1, 2, 4, 8, 16]))
    residues = draw(st.sets(st.integers(0, modulus - 1)))
    return ExtentRule(modulus, tuple(sorted(residues)))


def extent_read_by(row_extent: int, ends: list[int]) -> int:
    """The segment a row falls into: the first whose extent is not smaller than the row's own."""
    return next(end for end in ends if end >= row_extent)


@given(rule=rules(), past=st.integers(0, 2000), queries=st.integers(1, 8), wider=st.integers(0, 3))
def test_a_row_that_bears_no_tail_reads_exactly_its_own_extent(
    rule: ExtentRule, past: int, queries: int, wider: int
) -> None:
    max_queries = queries + wider
    ends = segment_extents(past, queries, rule, rule.segments(max_queries))
    for row_extent in range(past + 1, past + queries + 1):
        read = extent_read_by(row_extent, ends)
        assert read >= row_extent
        if rule.exact(row_extent):
            assert read == row_extent


@given(rule=rules(), past=st.integers(0, 2000), queries=st.integers(1, 8))
def test_segments_grow_and_the_unused_ones_repeat_the_full_extent(rule: ExtentRule, past: int, queries: int) -> None:
    segments = rule.segments(queries)
    ends = segment_extents(past, queries, rule, segments)
    assert len(ends) == segments
    assert ends == sorted(ends)
    assert all(past < end <= past + queries for end in ends)
    used = 1 + sum(rule.exact(extent) for extent in range(past + 1, past + queries))
    assert ends[used - 1 :] == [past + queries] * (segments - used + 1)
    assert len(set(ends)) == used


@given(rule=rules(), max_queries=st.integers(1, 8))
def test_the_segment_count_is_reached_at_some_alignment(rule: ExtentRule, max_queries: int) -> None:
    needed = [
        1 + sum(rule.exact(extent) for extent in range(past + 1, past + max_queries)) for past in range(rule.modulus)
    ]
    assert rule.segments(max_queries) == max(needed)


def test_a_block_that_needs_more_segments_than_the_graph_has_is_refused() -> None:
    with pytest.raises(ValueError, match="need 2 segments, the graph has 1"):
        segment_extents(1, 3, ExtentRule(4, (3,)), 1)


@pytest.mark.parametrize(
    ("rule", "past", "ends"),
    [
        (NO_TAIL_EFFECT, 5, [9]),
        (ExtentRule(4, (3,)), 5, [7, 9]),
        (ExtentRule(4, (3,)), 7, [11, 11]),  # the row at 11 is the last: it needs no segment of its own
        (EVERY_ROW_EXACT, 5, [6, 7, 8, 9]),
    ],
)
def test_four_rows_in_the_segments_of_a_rule(rule: ExtentRule, past: int, ends: list[int]) -> None:
    assert segment_extents(past, 4, rule, rule.segments(4)) == ends
