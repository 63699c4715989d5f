"""Writing a bundle: freeze, admit, plan, rewrite, and a folder that appears whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from qbpass.admission.admit import admit
from qbpass.admission.report import AdmissionReport
from qbpass.models.decoder import Decoder
from qbpass.models.digests import file_digest
from qbpass.models.errors import BundleError
from qbpass.models.freeze import GRAPH_FILE, freeze
from qbpass.models.packed_weights import pack_weights
from qbpass.models.recipe import recipe_of
from qbpass.models.session import SessionSpec
from qbpass.rewrites.apply import Emission
from qbpass.rewrites.bundle import Bundle, open_bundle
from qbpass.rewrites.bundle_weights import describe_weights, lie_in, take_frozen
from qbpass.rewrites.candidates import Candidates
from qbpass.rewrites.chains.plan import ChainPlan
from qbpass.rewrites.choice import Choice, choose, decision_file
from qbpass.rewrites.manifest import MANIFEST_FILE, Emit, Interface, Manifest, PlannedChain, PlannedRepair, PlannedSite
from qbpass.rewrites.phases import default_mask
from qbpass.rewrites.plan import AnyLayout, RewritePlan, SitePlan
from qbpass.rewrites.row_repair.repair import RowRepair
from qbpass.rewrites.width_graphs import width_file, widths_of
from qbpass.rewrites.written import Machine, Tried

GRAPHS: dict[Emit, dict[str, Emission]] = {
    "guarded": {"decoder.onnx": "guarded"},
    "widths": {"decoder.onnx": "guarded"},  # and width_graphs.py's
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
    pack: bool = False,
    force_repairs: Sequence[str] = (),
    fresh: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[Bundle, RewritePlan, AdmissionReport]:
    """Freeze, admit, plan, rewrite and write. The bundle appears in `folder` whole or not at all.

    copy_weights: the bundle holds all its weights and needs the model no more. Weights that lie in `folder`, which is
    replaced, are copied in any case. pack: the bundle holds all its weights, as kernels pack them, too
    (models/packed_weights.py).
    prefill: how the reference reads its prompt (Recipe.prefill). phase_mask: None for every phase of the target in
    which that leaves room for a layout. machine: what runs the whole decoder before the bundle appears, and
    times it for layout auto (written.py); without it nothing is run whole, and auto is the first layout of which no
    part is proven wrong. fresh: whatever auto decided before is decided again. force_repairs: see make_plan.
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
            reserved = {*_graph_files(emit, max_queries), MANIFEST_FILE, *frozen.tokenizer_files}
            frozen = take_frozen(frozen, staging, reserved, copy_weights=copy_weights)
        if pack:
            progress("packing weights for kernels")
            frozen = pack_weights(frozen, spec)
        progress("looking for attention sites")
        report = admit(frozen)
        options: dict[str, Any] = {"phase_mask": mask, "prefill": prefill, "max_queries": max_queries}

        emissions = GRAPHS[emit]
        work = Candidates(
            frozen,
            report,
            spec,
            prefill,
            emissions,
            machine,
            layout == "auto",
            options,
            force_repairs,
            progress,
            by_width=emit == "widths",
        )
        choice = None
        if layout == "auto":
            recipe = recipe_of(frozen, spec, prefill=prefill)
            ratios = None if machine is None else work.ratios
            memory = decision_file(recipe, {**options, "emit": emit, "force_repairs": sorted(force_repairs)})
            choice = choose(work.candidate, ratios, memory, fresh=fresh).choice
            layout = choice.layout
        written, tried = work.written(layout)
        plan = written.plan
        for name, emission in emissions.items():
            (staging / name).write_bytes(written.models[emission].SerializeToString(deterministic=True))
        for rows, model in written.widths.items():
            (staging / width_file(rows)).write_bytes(model.SerializeToString(deterministic=True))
        progress("writing the manifest: digests of every file")
        manifest = _manifest(frozen, plan, spec, staging, emit, prefill, choice, tried)
        for name in manifest.tokenizer_files:
            shutil.copyfile(decoder.tokenizer_files[name], staging / name)
        (staging / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=1))
        _publish(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return open_bundle(folder), plan, report


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
    names = _graph_files(emit, plan.max_queries)
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


def _graph_files(emit: Emit, max_queries: int) -> list[str]:
    widths = widths_of(max_queries) if emit == "widths" else ()
    return [*GRAPHS[emit], *(width_file(rows) for rows in widths), GRAPH_FILE]


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
