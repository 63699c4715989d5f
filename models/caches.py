"""The caches of a graph: inputs and outputs that attention reads as keys or values, one tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnx import TensorProto

from qbpass.models.attention_reads import Read, Role, attention_reads, is_buffered, is_windowed
from qbpass.models.cache_updates import LAYOUT, Successor, Update, find_successor, given_out, is_mixed
from qbpass.models.dataflow import FLOATS, Dataflow

_QUANTIZED = frozenset(
    getattr(TensorProto, name)
    for name in ("INT8", "UINT8", "INT4", "UINT4", "FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT8E4M3FNUZ", "FLOAT8E5M2FNUZ")
)


@dataclass(frozen=True)
class Cache:
    """One cache tensor. `roles`: what attention reads it as -> the position of the first attention that does.

    past is None where the graph makes the cache from nothing.
    """

    past: str | None
    present: str | None
    update: Update
    axis: int | None  # of the Concat that joins rows, where there is one
    roles: Mapping[Role, int]
    projected: bool = False  # keys and values are products of it with weights
    split: bool = False  # every read takes a part of it: keys and values lie side by side

    @property
    def at(self) -> int:
        """The position of the first attention that reads it."""
        return min(self.roles.values())

    @property
    def name(self) -> str:
        """Of the input, where there is one."""
        return self.past or self.present or ""


def may_hold_rows(flow: Dataflow, name: str) -> bool:
    """Whether an input or output has the type and rank of a cache."""
    shape = flow.shape(name)
    return flow.elem_type(name) in FLOATS | _QUANTIZED and (shape is None or len(shape) >= 3)


def is_quantized(flow: Dataflow, name: str) -> bool:
    """Whether a cache's elements are quantized."""
    return flow.elem_type(name) in _QUANTIZED


def taken_caches(flow: Dataflow) -> tuple[list[Cache], list[str]]:
    """(caches among the inputs in the graph's order, inputs that rows are appended to and no attention reads)."""
    found: list[Cache] = []
    unread: list[str] = []
    for past in flow.inputs:
        if not may_hold_rows(flow, past):
            continue
        reads = attention_reads(flow, past)
        after = _successor(flow, past, reads)
        if not reads and after.update in (Update.APPENDED, Update.SHIFTED, Update.SCATTERED):
            reads = attention_reads(flow, past, projections=1)
        if after.update is Update.PASSED:  # another stream's keys and values are read as they are
            reads = [read for read in reads if not is_mixed(flow, read.path[:-1])]
        if reads:
            roles = _roles(reads)
            projected, split = any(read.projected for read in reads), all(read.of_a_part for read in reads)
            found.append(Cache(past, after.present, after.update, after.axis, roles, projected, split))
        elif after.update is Update.APPENDED and after.axis in (2, -2) and len(flow.shape(past) or ()) == 4:
            unread.append(past)
    return found, unread


def given_caches(flow: Dataflow, claimed: frozenset[str]) -> list[Cache]:
    """Caches among the outputs that are not `claimed`: the graph makes them and takes none."""
    return list(_given(flow, claimed))


def _given(flow: Dataflow, claimed: frozenset[str]) -> Iterator[Cache]:
    for present in flow.outputs:
        if present in claimed or present in flow.inputs or not may_hold_rows(flow, present):
            continue
        reads = attention_reads(flow, flow.source(present, LAYOUT))
        if not reads:
            reads = attention_reads(flow, flow.source(present))
        if reads:
            yield Cache(None, present, Update.ABSENT, None, _roles(reads))


def _successor(flow: Dataflow, past: str, reads: list[Read]) -> Successor:
    fused = next((read for read in reads if read.present is not None), None)
    if fused is None or fused.present is None:
        return find_successor(flow, past, [read.path for read in reads])
    update = Update.SCATTERED if is_buffered(fused) else Update.SHIFTED if is_windowed(fused) else Update.APPENDED
    return Successor(given_out(flow, fused.present), update)


def _roles(reads: list[Read]) -> dict[Role, int]:
    roles: dict[Role, int] = {}
    for read in reads:
        roles[read.role] = min(read.at, roles.get(read.role, read.at))
    return roles
