"""The caches of one attention made into a pair, layer by layer, and what is unusual about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qbpass.models.cache_dims import growth_axis, head_dim, kv_heads
from qbpass.models.cache_form import check_form, check_joint
from qbpass.models.cache_updates import Update
from qbpass.models.caches import Cache, given_caches, taken_caches
from qbpass.models.contract import CachePair, KVPair
from qbpass.models.dataflow import INTEGERS, Dataflow
from qbpass.models.findings import Findings
from qbpass.models.interface import CrossKV


@dataclass(frozen=True)
class CacheLayers:
    """Self-attention caches, caches of another stream, and the inputs and outputs that these are.

    growing: inputs of rank 4 (or of no declared rank) that rows are appended to -> the axis they are appended along.
    """

    kv: tuple[CachePair, ...]
    cross: tuple[CrossKV, ...]
    inputs: frozenset[str]
    outputs: frozenset[str]
    growing: Mapping[str, int]


def find_cache_layers(flow: Dataflow, findings: Findings) -> CacheLayers:
    """Pairs in layer order, by dataflow; layers are ordered by the position of their attention."""
    taken, unread = taken_caches(flow)
    for name in unread:
        findings.add(
            "CACHE_WITHOUT_ATTENTION",
            f"KV input {name!r} is appended to but reaches no attention that qbpass can read: it is in neither a QK "
            "nor an AV product",
            name,
        )
    claimed = frozenset(cache.present for cache in taken if cache.present is not None)
    given = given_caches(flow, claimed)
    tokens = _from_tokens(flow) if given else frozenset()
    cross = [cache for cache in (*taken, *given) if _is_of_another_stream(cache, tokens)]
    self_attention = [cache for cache in (*taken, *given) if not _is_of_another_stream(cache, tokens)]
    kv = tuple(_pair(flow, number, group, findings) for number, group in enumerate(_by_attention(self_attention)))
    caches = [*self_attention, *cross]
    return CacheLayers(
        kv=kv,
        cross=tuple(_cross(number, group) for number, group in enumerate(_by_attention(cross))),
        inputs=frozenset(cache.past for cache in caches if cache.past is not None),
        outputs=frozenset(cache.present for cache in caches if cache.present is not None),
        growing=dict(_growing(flow, cache) for cache in self_attention if _grows(flow, cache)),
    )


def _grows(flow: Dataflow, cache: Cache) -> bool:
    appended = cache.update in (Update.APPENDED, Update.PREPENDED)
    return cache.past is not None and appended and len(flow.shape(cache.past) or [None] * 4) == 4


def _growing(flow: Dataflow, cache: Cache) -> tuple[str, int]:
    axis = growth_axis(flow, cache)
    return cache.name, axis if axis is not None and 0 <= axis < 4 else 2


def _from_tokens(flow: Dataflow) -> frozenset[str]:
    """Tensors that a token, a mask or a position has a part in, be it not by its number alone."""
    integers = [name for name in flow.inputs if flow.elem_type(name) in INTEGERS]
    return flow.dependents(integers, through_sizes=False)


def _is_of_another_stream(cache: Cache, tokens: frozenset[str]) -> bool:
    """Keys and values that are taken and never change, or made without a token: an encoder's."""
    return cache.update is Update.PASSED if cache.past is not None else cache.present not in tokens


def _by_attention(caches: Sequence[Cache]) -> list[list[Cache]]:
    groups: dict[int, list[Cache]] = {}
    for cache in caches:
        groups.setdefault(cache.at, []).append(cache)
    return [groups[at] for at in sorted(groups)]


def _cross(number: int, group: list[Cache]) -> CrossKV:
    names = {role: cache.name for cache in group for role in cache.roles}
    return CrossKV(number, names.get("key"), names.get("value"))


def _pair(flow: Dataflow, number: int, group: list[Cache], findings: Findings) -> CachePair:
    mine = Findings(flow)
    key, value = _key_and_value(group, mine)
    for cache in group:
        check_form(flow, cache, mine)
    held = key or value or group[0]
    pair = CachePair(
        layer=number,
        past_key=key.past if key else None,
        past_value=value.past if value else None,
        present_key=key.present if key else None,
        present_value=value.present if value else None,
        kv_heads=_heads(flow, held, mine),
        key_dim=_dim(flow, key, mine),
        value_dim=_dim(flow, value, mine),
        elem_type=flow.elem_type(held.name),
    )
    findings.merge(mine)
    return KVPair(**vars(pair)) if mine.empty else pair


def _key_and_value(group: list[Cache], findings: Findings) -> tuple[Cache | None, Cache | None]:
    """The cache of the keys and that of the values; the same one where it holds both."""
    both = [cache for cache in group if len(cache.roles) == 2]
    keys = [cache for cache in group if set(cache.roles) == {"key"}]
    values = [cache for cache in group if set(cache.roles) == {"value"}]
    names = [cache.name for cache in group]
    if both:
        check_joint(both[0], findings, names)
        return (keys or both)[0], (values or both)[0]
    for role, caches in (("key", keys), ("value", values)):
        if len(caches) > 1:
            findings.add(
                "AMBIGUOUS_CACHE",
                f"KV inputs {caches[0].name!r} and {caches[1].name!r} are both the {role}s of one attention: qbpass "
                "can't tell which to feed",
                *names,
            )
    if not keys or not values:
        role = "keys" if keys else "values"
        findings.add(
            "UNPAIRED_CACHE",
            f"KV input {names[0]!r} ({role}) has no partner in its attention: qbpass needs a key and a value input a "
            "layer",
            *names,
        )
    return keys[0] if keys else None, values[0] if values else None


def _heads(flow: Dataflow, cache: Cache, findings: Findings) -> int | None:
    heads = kv_heads(flow, cache)
    if heads is None and findings.empty:  # in a cache of another form it is no wonder
        findings.add(
            "UNKNOWN_HEADS",
            f"the number of KV heads of {cache.name!r} is not in the graph: export it with a fixed number of heads",
            cache.name,
        )
    return heads


def _dim(flow: Dataflow, cache: Cache | None, findings: Findings) -> int | None:
    dim = None if cache is None else head_dim(flow, cache)
    if cache is not None and dim is None and findings.empty:
        findings.add(
            "UNKNOWN_HEAD_DIM",
            f"the head dimension of {cache.name!r} is not in the graph: export it with a fixed head dimension",
            cache.name,
        )
    return dim
