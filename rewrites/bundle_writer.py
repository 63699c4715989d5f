"""Writing a bundle: freeze, admit, plan, rewrite, and a folder that appears whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from qbpass.admission.admit import admit
from qbpass.admission.dataflow import Flow
from qbpass.admission.lowering import lowered_decoder
from qbpass.admission.report import AdmissionReport
from qbpass.admission.strides.exported_audit import ExportedGraph
from qbpass.models.decoder import Decoder
from qbpass.models.digests import file_digest
from qbpass.models.errors import BundleError
from qbpass.models.freeze import GRAPH_FILE, freeze
from qbpass.models.recipe import recipe_of
from qbpass.models.session import SessionSpec
from qbpass.rewrites.apply import Emission, rewrite_graph
from qbpass.rewrites.bundle import Bundle, open_bundle
from qbpass.rewrites.bundle_weights import describe_weights, lie_in, take_frozen
from qbpass.rewrites.chains.audit import audit_chains
from qbpass.rewrites.chains.plan import ChainPlan
from qbpass.rewrites.choice import Choice, choose, decision_file
from qbpass.rewrites.gs_graph import gs_graph, plan_gs
from qbpass.rewrites.manifest import MANIFEST_FILE, Emit, Interface, Manifest, PlannedChain, PlannedRepair, PlannedSite
from qbpass.rewrites.phases import default_mask
from qbpass.rewrites.plan import AnyLayout, RewritePlan, SitePlan
from qbpass.rewrites.plan_audit import audit_written
from qbpass.rewrites.planner import check_addresses, make_plan, refuse_problems
from qbpass.rewrites.refused import RewriteRefused
from qbpass.rewrites.row_repair.asked_for import refuse_forced
from qbpass.rewrites.row_repair.repair import RowRepair
from qbpass.rewrites.written import Machine, Tried, Written

GRAPHS: dict[Emit, dict[str, Emission]] = {
    "guarded": {"decoder.onnx": "guarded"},
    "specialized": {"decoder.active.onnx": "active", "decoder.native.onnx": "native"},
}


def write_bundle(
    decoder: Decoder,
    folder: Path,
    layout: AnyLayout | Literal["auto"],
    spec: SessionSpec,
    *,
    machine: Machine | None = None,
    phase_mask: int | None = None,
    prefill: str = "whole",
    max_queries: int = 4,
    emit: Emit = "guarded",
    copy_weights: bool = False,
    force_repairs: Sequence[str] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[Bundle, RewritePlan, AdmissionReport]:
    """Freeze, admit, plan, rewrite and write. The bundle appears in `folder` whole or not at all.

    copy_weights: the bundle holds all its weights and needs the model no more. Weights that lie in `folder`, which is
    replaced, are copied in any case.
    prefill: how the reference reads its prompt (Recipe.prefill). phase_mask: None for every phase of the target in
    which that leaves room for a layout. machine: what runs the whole decoder before the bundle
    appears, and times it for layout auto (written.py); without it nothing is run whole, and auto is the first layout of
    which no part is proven wrong. force_repairs: see make_plan.
    Raises RewriteRefused (planner.py), BundleError where `folder` holds something else, and what freezing raises.
    """
    if folder.exists() and not (folder / MANIFEST_FILE).is_file() and any(folder.iterdir()):
        raise BundleError(f"{folder} is not empty and not a bundle: choose another folder")
    mask = default_mask(prefill) if phase_mask is None else phase_mask
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        progress("freezing: ONNX Runtime's own optimizer")
        copy_weights = copy_weights or lie_in(decoder, folder)
        frozen = freeze(decoder, staging, spec, copy_weights=copy_weights)
        if frozen.folder != staging:
            reserved = {*GRAPHS[emit], GRAPH_FILE, MANIFEST_FILE, *frozen.tokenizer_files}
            frozen = take_frozen(frozen, staging, reserved, copy_weights=copy_weights)
        progress("looking for attention sites")
        report = admit(frozen)
        options: dict[str, Any] = {"phase_mask": mask, "prefill": prefill, "max_queries": max_queries}

        emissions = GRAPHS[emit]
        work = _Work(
            frozen, report, spec, prefill, emissions, machine, layout == "auto", options, force_repairs, progress
        )
        choice = None
        if layout == "auto":
            recipe = recipe_of(frozen, spec, prefill=prefill)
            ratios = None if machine is None else work.ratios
            choice = choose(work.candidate, ratios, decision_file(recipe, {**options, "emit": emit})).choice
            layout = choice.layout
        written, tried = work.written(layout)
        plan = written.plan
        for name, emission in emissions.items():
            (staging / name).write_bytes(written.models[emission].SerializeToString(deterministic=True))
        progress("writing the manifest: digests of every file")
        manifest = _manifest(frozen, plan, spec, staging, emit, prefill, choice, tried)
        for name in manifest.tokenizer_files:
            shutil.copyfile(decoder.tokenizer_files[name], staging / name)
        (staging / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=1))
        _publish(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return open_bundle(folder), plan, report


@dataclass
class _Work:
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
        for name, emission in self.emissions.items():
            self.progress(f"rewriting: {name}")
            models[emission] = (gs_graph if plan.layout == "gs" else rewrite_graph)(self.frozen, plan, emission)
        if plan.layout != "gs":
            self.progress("following the addresses of what is written")
            read = lowered_decoder(self.frozen, (entry.site for entry in plan.sites))
            check_addresses(audit_written(plan, models, ExportedGraph(Flow.of(read))))
            problems = audit_chains(self.frozen, plan, models)
            refuse_problems([problem for site in problems.values() for problem in site])
        return Written(self.frozen, plan, models, self.prefill)

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


def _manifest(
    frozen: Decoder,
    plan: RewritePlan,
    spec: SessionSpec,
    staging: Path,
    emit: Emit,
    prefill: str,
    choice: Choice | None,
    tried: Tried | None,
) -> Manifest:
    names = [*GRAPHS[emit], GRAPH_FILE]
    return Manifest(
        qbpass_version=version("qbpass"),
        layout=plan.layout,
        choice=choice,
        whole={} if tried is None else dict(tried.evidence),
        phase_mask=plan.phase_mask,
        max_queries=plan.max_queries,
        emission=emit,
        exact_extent_modulus=plan.extents.modulus,
        exact_extent_residues=plan.extents.residues,
        segments=plan.segments,
        sites=tuple(_planned(entry) for entry in plan.sites),
        chains=tuple(_chained(entry) for entry in plan.chains),
        head=plan.head,
        head_evidence=dict(plan.head_evidence),
        repairs=tuple(_repaired(repair) for repair in plan.repairs),
        repair_evidence=dict(plan.repair_evidence),
        interface=Interface.of(frozen.contract),
        context_length=frozen.context_length,
        eos_token_ids=frozen.eos_token_ids,
        recipe=recipe_of(frozen, spec, prefill=prefill),
        files={name: file_digest(staging / name) for name in names},
        tokenizer_files=tuple(sorted(frozen.tokenizer_files)),
        weights=describe_weights(frozen),
    )


def _planned(entry: SitePlan) -> PlannedSite:
    site = entry.site
    return PlannedSite(
        name=site.name,
        layer=site.layer,
        heads=site.heads,
        kv_heads=site.kv_heads,
        head_dim=site.head_dim,
        qk=entry.form.qk,
        av=entry.form.av,
        clip=entry.form.clip,
        evidence=dict(entry.evidence),
    )


def _chained(entry: ChainPlan) -> PlannedChain:
    site = entry.site
    return PlannedChain(
        name=site.name,
        layer=site.layer,
        operator=site.operator,
        heads=site.heads,
        kv_heads=site.kv_heads,
        head_dim=site.head_dim,
        evidence=dict(entry.evidence),
    )


def _repaired(repair: RowRepair) -> PlannedRepair:
    nodes = tuple(unit.seed for unit in repair.units)
    return PlannedRepair(kind=repair.kind, nodes=nodes, rows_per_call=repair.rows_per_call, forced=repair.forced)


def _publish(staging: Path, folder: Path) -> None:
    """Swap the finished folder in: the old bundle is moved aside first, comes back where that fails, and goes last."""
    old = None
    if folder.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
        folder.replace(old / "bundle")
    try:
        staging.replace(folder)
    except OSError:
        if old is not None:
            (old / "bundle").replace(folder)
            old.rmdir()
        raise
    folder.chmod(0o755)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
