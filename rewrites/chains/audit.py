"""Which rows, lengths and memory each link of an emitted chain is given, worked out before anything is run on numbers.

The nodes that feed the operators are run by ONNX's reference evaluator on row numbers. What an operator does with its
operands is left to the falsifier; that they are the call's row, its own key extent and the one cache is shown here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from qbpass.admission.calls.call import Call
from qbpass.admission.fused_site import FusedSite
from qbpass.admission.report import Diagnostic
from qbpass.admission.strides.cut_graph import GraphCutter
from qbpass.admission.strides.elements import UntracedError
from qbpass.admission.strides.findings import CODES
from qbpass.models.decoder import Decoder
from qbpass.rewrites.apply import Emission
from qbpass.rewrites.chains.alone import fused_node
from qbpass.rewrites.chains.cache import link_cache_name, link_updated_name
from qbpass.rewrites.guard import PHASE_INPUT
from qbpass.rewrites.phases import Phase, layout_active
from qbpass.rewrites.plan import RewritePlan

#: Sizes tried: fewer rows than links, as many, a prompt of more, and pasts on both sides of small powers of two.
CALLS = (Call(1, 0), Call(1, 5), Call(2, 3), Call(3, 8), Call(4, 6), Call(9, 0), Call(7, 4))

#: Column of an operand's element, where it has a column for each key, is its row's number times this and its key.
KEYS = 1 << 20


def audit_chains(
    frozen: Decoder, plan: RewritePlan, models: Mapping[Emission, onnx.ModelProto]
) -> dict[str, list[Diagnostic]]:
    """Problems of each chained site by its name, in every graph that was emitted; [] where there are none."""
    found: dict[str, list[Diagnostic]] = {}
    for emission, model in models.items():
        cutter = GraphCutter(model)
        for entry in plan.chains:
            auditor = _Auditor(frozen, plan, entry.site, model, cutter, emission)
            found.setdefault(entry.site.name, []).extend(auditor.problems())
    return found


@dataclass(frozen=True)
class _Auditor:
    frozen: Decoder
    plan: RewritePlan
    site: FusedSite
    model: onnx.ModelProto
    cutter: GraphCutter
    emission: Emission

    def problems(self) -> Iterator[Diagnostic]:
        links = self._links()
        wanted = 1 if self.emission == "native" else self.plan.max_queries
        if len(links) != wanted:
            yield self._problem("UNTRACED", Call(1, 0), f"{len(links)} links where {wanted} were planned")
            return
        yield from self._operand_problems(links)
        yield from self._order_problems(links)
        for call in CALLS:
            for phase in self._phases():
                try:
                    yield from self._call_problems(links, call, phase)
                except (UntracedError, KeyError, IndexError, RuntimeError) as error:
                    yield self._problem("UNTRACED", call, f"what the links are given can't be worked out: {error}")

    def _links(self) -> list[onnx.NodeProto]:
        start, end = f"qbpass/{self.site.name}/chain/link", "/operator"
        found = [node for node in self.cutter.nodes if node.name.startswith(start) and node.name.endswith(end)]
        return sorted(found, key=lambda node: int(node.name.removeprefix(start).removesuffix(end)))

    def _phases(self) -> Sequence[Phase | None]:
        return tuple(Phase) if self.emission == "guarded" else (None,)

    def _operand_problems(self, links: Sequence[onnx.NodeProto]) -> Iterator[Diagnostic]:
        """Each link is the exported operator over the exported operands, but for rows, lengths and its own memory."""
        site, exported = self.site, fused_node(self.frozen.model, self.site)
        changed = {*site.row_axes, site.past_key_at, site.past_value_at, site.seqlens_k_at, site.total_at}
        attributes = sorted(entry.SerializeToString() for entry in exported.attribute)
        for number, link in enumerate(links):
            memory = {
                site.past_key_at: link_cache_name(site.layer, "key", number),
                site.past_value_at: link_cache_name(site.layer, "value", number),
            }
            places = range(max(len(link.input), len(exported.input)))
            reads = [link.input[place] if place < len(link.input) else "" for place in places]
            asked = [exported.input[place] if place < len(exported.input) else "" for place in places]
            same = all(reads[place] == memory.get(place, asked[place]) for place in places if place not in changed)
            same = same and all(reads[place] == name for place, name in memory.items())
            written = [link_updated_name(site.layer, part, number) for part in ("key", "value")]
            kind = (link.op_type, link.domain, sorted(entry.SerializeToString() for entry in link.attribute))
            if (
                not same
                or list(link.output[1:3]) != written
                or kind
                != (
                    exported.op_type,
                    exported.domain,
                    attributes,
                )
            ):
                yield self._problem("LINK_OPERANDS", Call(1, 0), f"link {number} is not the exported operator's form")

    def _order_problems(self, links: Sequence[onnx.NodeProto]) -> Iterator[Diagnostic]:
        """A link reads memory that the link before writes: it must not be able to run first."""
        makers = {name: node for node in self.cutter.nodes for name in node.output if name}
        for number in range(1, len(links)):
            if not _depends(links[number], set(links[number - 1].output), makers):
                yield self._problem("LINK_ORDER", Call(1, 0), f"link {number} may run before link {number - 1}")

    def _call_problems(self, links: Sequence[onnx.NodeProto], call: Call, phase: Phase | None) -> Iterator[Diagnostic]:
        active = self.emission == "active" if phase is None else layout_active(phase, self.plan.phase_mask)
        if active and call.queries > self.plan.max_queries:
            return
        given = self._given(links, call, phase)
        for number, seen in enumerate(given):
            wanted = _wanted(number, call, active)
            if any(list(rows) != wanted.rows for rows in seen.rows) or any(
                list(keys) != list(range(wanted.total)) for keys in seen.keys
            ):
                rows = [list(map(int, rows)) for rows in seen.rows]
                yield self._problem(
                    "LINK_ROWS", call, f"link {number} holds rows {rows[:1]}, not {wanted.rows}", phase, link=number
                )
            if (seen.seqlens_k, seen.total) != (wanted.total - 1, wanted.total):
                message = f"link {number} is told {seen.total} keys, its last row's position {seen.seqlens_k}"
                yield self._problem("LINK_LENGTHS", call, f"{message}: {wanted.total} are right", phase, link=number)
        if not any(self.site.output in node.output for node in self.cutter.nodes):
            return  # nothing reads what the last layer attends to, and it was cleaned away; its cache is kept
        output = self._output(links, given, call, phase)
        if output != list(range(call.queries)):
            yield self._problem("OUTPUT_MAP", call, f"rows come back as {output[:8]}", phase)

    def _given(self, links: Sequence[onnx.NodeProto], call: Call, phase: Phase | None) -> list[_Given]:
        """What every link's operands hold in a call."""
        site, leaves = self.site, self._leaves(call, phase)
        for link in links:
            leaves[link.output[0]] = np.zeros((1, 1, 1), np.int64)  # asked for the number of streams alone
        places = sorted(site.row_axes)
        asked = [name for link in links for name in (*(link.input[p] for p in places), *self._lengths(link))]
        values = dict(zip(asked, self._evaluate(list(dict.fromkeys(asked)), leaves, asked), strict=True))
        found = []
        for link in links:
            rows, keys = [], []
            for place in places:
                numbers = values[link.input[place]]
                rows.append(_first_along(numbers, site.row_axes[place]) // KEYS)
                if place in site.key_axes:
                    keys.append(_first_along(numbers, site.key_axes[place]) % KEYS)
            seqlens_k, total = (int(np.ravel(values[name])[0]) for name in self._lengths(link))
            found.append(_Given(rows, keys, seqlens_k, total))
        return found

    def _lengths(self, link: onnx.NodeProto) -> tuple[str, str]:
        return link.input[self.site.seqlens_k_at], link.input[self.site.total_at]

    def _output(
        self, links: Sequence[onnx.NodeProto], given: Sequence[_Given], call: Call, phase: Phase | None
    ) -> list[int]:
        """The rows of the site's output, as numbers of the call's rows."""
        leaves = self._leaves(call, phase)
        for link, seen in zip(links, given, strict=True):
            leaves[link.output[0]] = np.asarray(seen.rows[0], np.int64).reshape(1, -1, 1)
        (output,) = self._evaluate([self.site.output], leaves, [self.site.output])
        return [int(row) for row in np.ravel(output)]

    def _leaves(self, call: Call, phase: Phase | None) -> dict[str, np.ndarray]:
        site, exported = self.site, fused_node(self.frozen.model, self.site)
        leaves: dict[str, np.ndarray] = {
            self.frozen.contract.input_ids: np.zeros((1, call.queries), np.int64),
            site.seqlens_k: np.array([call.extent - 1], np.int32),
            site.total: np.array([call.extent], np.int32),
        }
        if phase is not None:
            leaves[PHASE_INPUT] = np.array(int(phase), np.int64)
        for place, axis in site.row_axes.items():
            key_axis = site.key_axes.get(place)
            shape = [1] * (max(axis, key_axis or 0, 2) + 1 if place != site.positions_at else 2)
            shape[axis] = call.queries
            rows = np.arange(call.queries).reshape([-1 if at == axis else 1 for at in range(len(shape))]) * KEYS
            if key_axis is not None:
                rows = rows + np.arange(call.extent).reshape([-1 if at == key_axis else 1 for at in range(len(shape))])
            leaves[exported.input[place]] = rows
        return leaves

    def _evaluate(self, outputs: list[str], leaves: Mapping[str, np.ndarray], order: Sequence[str]) -> list[np.ndarray]:
        made = [name for name in outputs if name not in leaves]
        values = dict(leaves)
        if made:
            part = self.cutter.cut(made, set(leaves), lambda tensor: list(np.shape(leaves[tensor])))
            reads = {entry.name: leaves[entry.name] for entry in part.graph.input}
            results: Any = ReferenceEvaluator(part).run(None, reads)
            values |= dict(zip(made, results, strict=True))
        return [values[name] for name in order]

    def _problem(self, code: str, call: Call, message: str, phase: Phase | None = None, **evidence: Any) -> Diagnostic:
        assert code in CODES
        where: dict[str, Any] = {"graph": self.emission, "queries": call.queries, "past": call.past}
        if phase is not None:
            where["phase"] = (phase.name or "").lower()
        return Diagnostic(code, self.site.name, message, {**where, **evidence})


@dataclass(frozen=True)
class _Given:
    """rows: of each operand with rows; keys: of each with a column for a key."""

    rows: list[np.ndarray]
    keys: list[np.ndarray]
    seqlens_k: int
    total: int


@dataclass(frozen=True)
class _Wanted:
    rows: list[int]
    total: int


def _wanted(number: int, call: Call, active: bool) -> _Wanted:
    """As evaluated alone: row j behind past + j rows. A link without a row: one key of scratch."""
    if not active and number == 0:
        return _Wanted(list(range(call.queries)), call.extent)
    if active and number < call.queries:
        return _Wanted([number], call.past + number + 1)
    return _Wanted([0], 1)


def _first_along(numbers: np.ndarray, axis: int) -> np.ndarray:
    """The first element of every index of an axis."""
    return np.moveaxis(numbers, axis, -1).reshape(-1, numbers.shape[axis])[0] if numbers.size else np.empty(0, np.int64)


def _depends(node: onnx.NodeProto, on: set[str], makers: Mapping[str, onnx.NodeProto]) -> bool:
    seen: set[str] = set()
    pending = [name for name in node.input if name]
    while pending:
        name = pending.pop()
        if name in on:
            return True
        if name in seen or name not in makers:
            continue
        seen.add(name)
        pending.extend(makers[name].input)
    return False
