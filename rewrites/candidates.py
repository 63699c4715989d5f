"""What a frozen decoder may become: each layout's plan, its graphs, and what came of running them whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qbpass.admission.dataflow import Flow
from qbpass.admission.lowering import lowered_decoder
from qbpass.admission.report import AdmissionReport
from qbpass.admission.strides.exported_audit import ExportedGraph
from qbpass.models.decoder import Decoder
from qbpass.models.session import SessionSpec
from qbpass.rewrites.apply import Emission, rewrite_graph
from qbpass.rewrites.chains.audit import audit_chains
from qbpass.rewrites.gs_graph import gs_graph, plan_gs
from qbpass.rewrites.plan import AnyLayout, RewritePlan
from qbpass.rewrites.plan_audit import audit_written
from qbpass.rewrites.planner import check_addresses, make_plan, refuse_problems
from qbpass.rewrites.refused import RewriteRefused
from qbpass.rewrites.row_repair.asked_for import refuse_forced
from qbpass.rewrites.width_graphs import width_graphs
from qbpass.rewrites.written import Machine, Tried, Written


@dataclass
class Candidates:
    """Plans, graphs and trials of one frozen decoder, each layout's once."""

    frozen: Decoder
    report: AdmissionReport
    spec: SessionSpec
    prefill: str
    emissions: Mapping[str, Emission]
    machine: Machine | None
    timed: bool
    options: Mapping[str, Any]
    force_repairs: Sequence[str]
    progress: Callable[[str], None]
    by_width: bool = False
    _done: dict[AnyLayout, tuple[Written, Tried | None]] = field(default_factory=dict)

    def candidate(self, layout: AnyLayout) -> RewritePlan:
        """A plan that is not proven wrong. GS is not run for this: it is the reference's own graph, row by row."""
        return self._plan(layout) if layout == "gs" else self.written(layout)[0].plan

    def ratios(self, plan: RewritePlan) -> Mapping[AnyLayout, float]:
        tried = self.written(plan.layout)[1]
        return {} if tried is None else tried.ratios

    def written(self, layout: AnyLayout) -> tuple[Written, Tried | None]:
        """Raises RewriteRefused where the plan is, where what is emitted reads what it must not, and where the whole
        decoder differs from the reference or can't be run.
        """
        if layout not in self._done:
            written = self._emit(self._plan(layout))
            tried = None if self.machine is None else self._try(written)
            self._done[layout] = (written, tried)
        return self._done[layout]

    def _plan(self, layout: AnyLayout) -> RewritePlan:
        if layout == "gs":
            refuse_forced(self.force_repairs)
            return plan_gs(self.frozen, **self.options)
        return make_plan(
            self.frozen,
            self.report,
            layout,
            self.spec,
            **self.options,
            force_repairs=self.force_repairs,
            progress=self.progress,
        )

    def _emit(self, plan: RewritePlan) -> Written:
        models = {}
        widths = width_graphs(self.frozen, plan) if self.by_width else {}
        for name, emission in self.emissions.items():
            self.progress(f"rewriting: {name}")
            models[emission] = (gs_graph if plan.layout == "gs" else rewrite_graph)(self.frozen, plan, emission)
        if plan.layout != "gs":
            self.progress("following the addresses of what is written")
            read = lowered_decoder(self.frozen, (entry.site for entry in plan.sites))
            check_addresses(audit_written(plan, models, ExportedGraph(Flow.of(read))))
            problems = audit_chains(self.frozen, plan, models)
            refuse_problems([problem for site in problems.values() for problem in site])
        return Written(self.frozen, plan, models, self.prefill, widths)

    def _try(self, written: Written) -> Tried:
        assert self.machine is not None
        layout = written.plan.layout
        self.progress(f"trying the whole decoder in layout {layout}")
        tried = self.machine(written, self.timed)
        if tried.evidence["verdict"] == "false":
            raise RewriteRefused(f"the whole decoder in layout {layout} is false here: {_seen(tried)}", of_layout=True)
        return tried


def _seen(tried: Tried) -> str:
    witness = tried.evidence["witness"]
    if "past" not in witness:
        return f"the last of {witness['prompt_tokens']} prompt rows differs (seed {witness['seed']})"
    return (
        f"row {witness['row']} of {witness['queries']} behind {witness['past']} differs from serial decoding's by "
        f"{witness['max_abs_difference']:.3g} (seed {witness['seed']})"
    )
