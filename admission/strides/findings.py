"""What an audit finds wrong, by name. Codes are append-only, as admission's are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qbpass.admission.calls.call import Call
from qbpass.admission.report import Diagnostic
from qbpass.admission.site import AttentionSite
from qbpass.admission.strides.elements import Ids
from qbpass.admission.strides.required import NOTHING, Reads

#: What each code means.
CODES: Mapping[str, str] = {
    "UNTRACED": "the operations can't be followed, or compute no attention",
    "OUTPUT_MAP": "whole rows or heads land in another row's or head's place",
    "QUERY_MAP": "a score is computed from another query, head or channel",
    "KEY_MAP": "a score is computed from another key row, KV head or channel",
    "MASK_MAP": "a score gets another mask value, or none",
    "WEIGHT_MAP": "a value is weighted with another key's weight",
    "VALUE_MAP": "an output sums another value row, KV head or channel",
    "VALUE_EXTENT": "an output's sum does not end where it must",
    "STEPS": "scores, weights or operands go through other operations than in the exported graph",
    "SCALE": "the factors on the scores are not the site's scale",
    "CACHE_ROWS": "the cache does not hold the past rows and then the call's own",
    "PHASE_GUARD": "the guard does not choose the layout that the plan has for the phase",
    "VIEW_SPAN": "a view reaches out of its allocation",
    "VIEW_ALIGNMENT": "a view's elements straddle others",
    "VIEW_OVERLAP": "different indices of a view are the same memory without declared sharing",
    "STREAM_COPIED": "keys or values are copied where the layout shares one stream",
    "ORACLE_DISAGREES": "the algebra and the oracle give a tensor's elements different addresses",
    "MASK_AHEAD": "a row may see keys behind its own",
    "MASK_NOT_SERIAL": "a row's mask is not what the row would be given alone",
    "LINK_OPERANDS": "a link of a chain is not the exported operator over its own memory",
    "LINK_ROWS": "a link of a chain holds another row than its own, or another row's columns",
    "LINK_LENGTHS": "a link of a chain is told another number of keys than its row has alone",
    "LINK_ORDER": "a link of a chain may run before the link whose rows it reads",
    "MASK_UNKNOWN": "the mask's values can't be worked out for a call",
}


@dataclass(frozen=True)
class Place:
    """Where a problem was found: the site, the call, and which graph (exported, active, native)."""

    site: AttentionSite
    call: Call
    part: str

    def problem(self, code: str, message: str, **evidence: Any) -> Diagnostic:
        if code not in CODES:
            raise KeyError(f"{code} is no audit code")
        where = {"graph": self.part, "queries": self.call.queries, "past": self.call.past}
        return Diagnostic(code, self.site.name, message, {**where, **evidence})


def compare_reads(place: Place, found: Reads, required: Reads, witness: str) -> list[Diagnostic]:
    """What is read against what must be; `witness` says which of the two traces found it."""
    problems = list(_differences(place, found, required, witness))
    if not problems:
        return []
    landed = _landed_elsewhere(place, found, required, witness)
    return problems if landed is None else [landed]


def _differences(place: Place, found: Reads, required: Reads, witness: str) -> Iterator[Diagnostic]:
    site = place.site
    kv = {"row": site.kv_heads * site.head_dim, "head": site.head_dim, "channel": 1}
    values = {"row": site.kv_heads * site.value_dim, "head": site.value_dim, "channel": 1}
    queries = {"head": place.call.queries * site.head_dim, "row": site.head_dim, "channel": 1}
    ended = np.array_equal(found.column_Hqn == NOTHING, required.column_Hqn == NOTHING)
    if not ended:
        yield _extent_problem(place, found.column_Hqn, required.column_Hqn, witness)
    for code, seen, wanted, units in (
        ("QUERY_MAP", found.query_HqnD, required.query_HqnD, queries),
        ("KEY_MAP", found.key_HqnD, required.key_HqnD, kv),
        ("MASK_MAP", found.mask_Hqn, required.mask_Hqn, {"mask element": 1}),
        ("WEIGHT_MAP", found.column_Hqn, required.column_Hqn, {"key": 1}),
        ("VALUE_MAP", found.value_HqnV, required.value_HqnV, values),
    ):
        if not ended and code in ("WEIGHT_MAP", "VALUE_MAP"):
            continue  # VALUE_EXTENT speaks for it
        if seen.shape != wanted.shape:
            message = f"{list(seen.shape)} elements are read where {list(wanted.shape)} must be"
            yield place.problem(code, message, found_by=witness)
        elif not np.array_equal(seen, wanted):
            yield _problem(place, code, seen, wanted, witness, units)


def _problem(place: Place, code: str, seen: Ids, wanted: Ids, witness: str, units: Mapping[str, int]) -> Diagnostic:
    """The first difference, and how many (head, row) pairs have one."""
    differs = seen != wanted
    first = tuple(int(index) for index in np.argwhere(differs)[0])
    pairs = int(differs.reshape(*differs.shape[:2], -1).any(axis=2).sum())
    at = dict(zip(("head", "row", "key", "channel"), first, strict=False))
    message = f"head {first[0]}, row {first[1]}: {_element(int(seen[first]), units)} instead of "
    return place.problem(
        code,
        message + _element(int(wanted[first]), units),
        found_by=witness,
        pairs_differing=pairs,
        pairs=int(differs.shape[0] * differs.shape[1]),
        first=at,
    )


def _extent_problem(place: Place, seen: Ids, wanted: Ids, witness: str) -> Diagnostic:
    counts, required = ((columns != NOTHING).sum(axis=2) for columns in (seen, wanted))
    a, j = np.argwhere(counts != required)[0]
    message = f"head {a}, row {j} sums {counts[a, j]} values instead of {required[a, j]}"
    return place.problem(
        "VALUE_EXTENT", message, found_by=witness, values=counts.tolist(), values_required=required.tolist()
    )


def _element(number: int, units: Mapping[str, int]) -> str:
    """An element's number in words, such as `row 3, head 1, channel 0`; units say how many elements each has."""
    if number == NOTHING:
        return "nothing"
    words = []
    for name, unit in units.items():
        words.append(f"{name} {number // unit}")
        number %= unit
    return ", ".join(words)


def _landed_elsewhere(place: Place, found: Reads, required: Reads, witness: str) -> Diagnostic | None:
    """If every (head, row) reads just what another one must, then nothing is wrong but where the result is put."""
    if found.query_HqnD.shape != required.query_HqnD.shape:
        return None
    heads, rows = found.query_HqnD.shape[:2]
    first = found.query_HqnD[:, :, 0, 0]
    if np.any(first < 0):
        return None
    head, row = np.divmod(first // found.query_HqnD.shape[3], rows)
    if len(np.unique(head * rows + row)) != heads * rows or head.max() >= heads:
        return None
    pairs = (
        (found.query_HqnD, required.query_HqnD),
        (found.key_HqnD, required.key_HqnD),
        (found.mask_Hqn, required.mask_Hqn),
        (found.column_Hqn, required.column_Hqn),
        (found.value_HqnV, required.value_HqnV),
    )
    if not all(np.array_equal(seen, wanted[head, row]) for seen, wanted in pairs):
        return None
    a, j = np.argwhere((head != np.arange(heads)[:, None]) | (row != np.arange(rows)[None, :]))[0]
    message = f"the result of head {head[a, j]}, row {row[a, j]} is put in the place of head {a}, row {j}"
    return place.problem("OUTPUT_MAP", message, found_by=witness)
