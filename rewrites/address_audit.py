"""Which element each operation of a rewritten site reads, before anything of it is run on numbers.

Every layout operation of the emitted graph is traced as a strided view, and the emitted nodes are run on index tensors;
both must read what the definition of the attention asks (admission/strides/required.py), by the operations of the
exported graph. A layout that is wrong in an address is refused here, by name; what is left for the falsifier is how
kernels round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx

from qbpass.admission.calls.call import Call
from qbpass.admission.dataflow import Flow
from qbpass.admission.report import Diagnostic
from qbpass.admission.site import AttentionSite
from qbpass.admission.strides.algebra import Operation
from qbpass.admission.strides.call_audit import CallAudit, audit_call
from qbpass.admission.strides.cut_graph import GraphCutter
from qbpass.admission.strides.elements import UntracedError
from qbpass.admission.strides.exported_audit import ExportedGraph, element_size
from qbpass.admission.strides.findings import Place
from qbpass.admission.strides.required import KEY, VALUE
from qbpass.models.decoder import Decoder
from qbpass.rewrites.apply import Emission, rewrite_graph
from qbpass.rewrites.emitted import emitted_subject
from qbpass.rewrites.guarded_nodes import guarded_nodes
from qbpass.rewrites.lowering.audit_fused import SPELLED, with_fused_spelled_out
from qbpass.rewrites.phases import Phase, layout_active
from qbpass.rewrites.plan import RewritePlan
from qbpass.rewrites.site_graph import plan_alone, site_alone

#: Sizes tried: one row, and blocks whose rows lie on both sides of every extent modulo 4.
CALLS = (Call(1, 5), Call(2, 3), Call(3, 4), Call(4, 6), Call(4, 7))

#: Elements of the largest table of addresses, (heads, rows, keys, channels), that one call of an audit may make.
TABLE_LIMIT = 1 << 23


def audit_calls(site: AttentionSite, max_queries: int) -> tuple[Call, ...]:
    """The calls of CALLS that a plan's width allows, and one as wide as the plan, as far as its tables stay small."""
    calls = [call for call in CALLS if call.queries <= max_queries]
    wide = max_queries
    while wide > 4 and site.heads * wide * (wide + 3) * max(site.head_dim, site.value_dim) > TABLE_LIMIT:
        wide -= 1
    return tuple([*calls, Call(wide, 3)] if wide > 4 else calls)


@dataclass(frozen=True, eq=False)
class SiteAudit:
    """Every call of a site in its exported graph and in the emitted one, in a phase of the layout and in another."""

    site: AttentionSite
    layout: str
    calls: tuple[CallAudit, ...]

    @property
    def problems(self) -> tuple[Diagnostic, ...]:
        return tuple(problem for call in self.calls for problem in call.problems)

    def summary(self) -> dict[str, Any]:
        """For a manifest: views are counted, copies named with their bytes in each call (queries+past).

        What is inside a fused node is not counted.
        """
        graphs: dict[str, dict[str, Any]] = {}
        for audit in self.calls:
            graph = graphs.setdefault(audit.place.part, {"views": 0, "copies": {}})
            size = f"{audit.place.call.queries}+{audit.place.call.past}"
            operations = [op for op in audit.operations if SPELLED not in op.tensor]
            graph["views"] = max(graph["views"], sum(op.form == "view" for op in operations))
            for op in operations:
                if op.form == "copy":
                    of = "+".join(op.roots) or "results"
                    copies = graph["copies"].setdefault(f"{op.operator} of {of}", {})
                    copies[size] = copies.get(size, 0) + op.nbytes
        found: dict[str, Any] = {"problems": sorted({problem.code for problem in self.problems}), "graphs": graphs}
        if self.site.fused is not None:
            found["fused"] = f"followed up to the operands of {self.site.fused.node.op_type}, and as spelled out inside"
        return found

    def to_json(self) -> dict[str, Any]:
        return {"site": self.site.name, "layout": self.layout, "calls": [call.to_json() for call in self.calls]}


def audit_site(
    frozen: Decoder,
    plan: RewritePlan,
    site: AttentionSite,
    calls: Iterable[Call] | None = None,
    exported: ExportedGraph | None = None,
) -> SiteAudit:
    """One site of a plan, in the guarded graph of a decoder reduced to it (site_graph.py).

    exported: the frozen decoder's graph, where several sites are audited. Raises ContractError as `rewrite_graph` does.
    """
    alone = plan_alone(plan, site)
    model = rewrite_graph(site_alone(frozen, site), alone, "guarded")
    return PlanAuditor(alone, {"guarded": model}, exported or ExportedGraph(Flow.of(frozen))).audit(site, calls)


class PlanAuditor:
    """The graphs of a plan as they were emitted, asked about their sites."""

    def __init__(self, plan: RewritePlan, models: Mapping[Emission, onnx.ModelProto], exported: ExportedGraph) -> None:
        """models: a guarded graph, or straight-line ones; exported: the frozen graph that they are rewrites of."""
        self.plan, self.exported = plan, exported
        self._graphs = dict(_phases(plan, models))

    def audit(self, site: AttentionSite, calls: Iterable[Call] | None = None) -> SiteAudit:
        chosen = audit_calls(site, self.plan.max_queries) if calls is None else tuple(calls)
        exported = self.exported.audit(site, chosen)
        emitted = [self._emitted(site, before, part) for part in self._graphs for before in exported]
        return SiteAudit(site, self.plan.layout, (*exported, *emitted))

    def _emitted(self, site: AttentionSite, before: CallAudit, part: str) -> CallAudit:
        call = before.place.call
        place = Place(site, call, part)
        graph = self._graphs[part]
        try:
            if isinstance(graph, UntracedError):
                raise graph
            subject = emitted_subject(
                with_fused_spelled_out(graph.cutter, site),
                self.plan,
                site,
                call,
                active=part == "active",
                exported=self.exported,
            )
        except UntracedError as error:
            return CallAudit(place, (), (place.problem("UNTRACED", f"the {part} graph {error}"),))
        audit = audit_call(place, subject, element_size(site))
        problems = [*audit.problems, *_step_problems(place, before, audit)]
        if not graph.chosen:
            problems.append(place.problem("PHASE_GUARD", f"the guard does not choose the {part} layout in its phase"))
        if part == "active" and self.plan.layout == "qb":
            problems += _stream_problems(place, audit.operations)
        return replace(audit, problems=tuple(problems))


@dataclass(frozen=True, eq=False)
class _Graph:
    """chosen: whether a guard, where there is one, chooses this layout in its phases."""

    cutter: GraphCutter
    chosen: bool


def _phases(
    plan: RewritePlan, models: Mapping[Emission, onnx.ModelProto]
) -> Iterator[tuple[str, _Graph | UntracedError]]:
    """(active | native, its graph): of a guarded graph in a phase in which the plan wants that layout, if there is."""
    parts: tuple[Emission, ...] = ("active", "native")
    for part in parts:
        if part in models:
            yield part, _Graph(GraphCutter(models[part]), True)
        phases = [phase for phase in Phase if layout_active(phase, plan.phase_mask) == (part == "active")]
        if "guarded" in models and phases:
            try:
                yield part, _guarded(models["guarded"], phases[0], active=part == "active")
            except UntracedError as error:
                yield part, error


def _guarded(model: onnx.ModelProto, phase: Phase, *, active: bool) -> _Graph:
    chosen = guarded_nodes(model, phase)
    cutter = GraphCutter(model, chosen.nodes)
    cutter.constants |= {constant.name: constant for constant in chosen.constants}
    return _Graph(cutter, chosen.active == active)


def _step_problems(place: Place, before: CallAudit, after: CallAudit) -> list[Diagnostic]:
    """A score must go through the operations of the exported graph, in their order."""
    if before.steps is None or after.steps is None:
        return []
    return [
        place.problem("STEPS", f"{where}: {_listed(after.steps[where])} instead of {_listed(chains)}", where=where)
        for where, chains in before.steps.items()
        if after.steps[where] != chains
    ]


def _listed(chains: Sequence[str]) -> str:
    return " or ".join(chain or "nothing" for chain in chains[:2])


def _stream_problems(place: Place, operations: Sequence[Operation]) -> list[Diagnostic]:
    """QB shares one stream of keys and values: neither may be copied whole, let alone once a query or a head."""
    site, problems = place.site, []
    for operation in operations:
        widths = {KEY: site.head_dim, VALUE: site.value_dim}
        whole = [place.call.extent * site.kv_heads * width for root, width in widths.items() if root in operation.roots]
        if operation.form == "copy" and whole and operation.nbytes >= max(whole) * element_size(site):
            message = f"{operation.operator} copies {operation.nbytes:,} bytes of {', '.join(operation.roots)}"
            problems.append(place.problem("STREAM_COPIED", message, **operation.to_json()))
    return problems
