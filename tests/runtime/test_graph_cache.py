"""What is kept between calls is used again for the same call alone: a difference in any part of the key rejects it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from qbpass.runtime.graph_cache import GraphCache, GraphKey

KEY = GraphKey(session="session", layout=1, width=3, extent=64, capacity=256, shapes=((1, 3), (1, 64)))
OTHERS: dict[str, Any] = {
    "session": "another session",
    "layout": 0,
    "width": 4,
    "extent": 128,
    "capacity": 512,
    "shapes": ((1, 3), (1, 128)),
}


def test_every_field_of_the_key_is_tried() -> None:
    assert set(OTHERS) == {field.name for field in fields(GraphKey)}


@pytest.mark.parametrize("field", OTHERS)
def test_a_difference_in_one_field_rejects_reuse(field: str) -> None:
    cache: GraphCache[str] = GraphCache()
    first = cache.get(KEY, lambda: "first")
    other = cache.get(replace(KEY, **{field: OTHERS[field]}), lambda: "other")
    assert (first.value, other.value) == ("first", "other")
    assert first.graph_id != other.graph_id
    assert cache.get(KEY, lambda: "never made") is first
    assert (cache.made, cache.reused) == (2, 1)


def test_graph_ids_are_never_given_twice_whichever_cache_they_are_of() -> None:
    """Two targets may share a session, and with it the captured graphs that ids name."""
    caches: list[GraphCache[None]] = [GraphCache(), GraphCache()]
    ids = [cache.get(replace(KEY, width=width), lambda: None).graph_id for cache in caches for width in (1, 2)]
    caches[0].clear()
    ids.append(caches[0].get(KEY, lambda: None).graph_id)
    assert len(set(ids)) == 5
    assert min(ids) > 0


def test_a_full_cache_loses_what_was_used_longest_ago_and_says_so() -> None:
    dropped: list[int] = []
    cache: GraphCache[int] = GraphCache(most=2, dropped=dropped.append)
    for width in (1, 2, 1, 3):
        cache.get(replace(KEY, width=width), lambda: 0)
    assert len(cache) == 2
    cache.get(replace(KEY, width=1), lambda: 0)
    assert cache.made == 3
    cache.get(replace(KEY, width=2), lambda: 0)
    assert cache.made == 4
    assert len(dropped) == len(set(dropped)) == 2
    cache.clear()
    assert len(set(dropped)) == 4


def test_what_fails_while_it_is_made_is_not_kept() -> None:
    cache: GraphCache[int] = GraphCache()
    with pytest.raises(ZeroDivisionError):
        cache.get(KEY, lambda: 1 // 0)
    assert cache.get(KEY, lambda: 1).value == 1
