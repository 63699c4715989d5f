"""A bundle: the rewritten decoder, the frozen reference it came from, and a manifest that says what they are.

The folder holds qbpass.json, decoder.onnx (guarded) or decoder.active.onnx and decoder.native.onnx (specialized),
reference.onnx and reference.data (the frozen graph and the weights all of these graphs share), and the tokenizer's
files.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from qbpass.admission.admit import admit
from qbpass.admission.report import AdmissionReport
from qbpass.models.decoder import Decoder
from qbpass.models.digests import file_digest
from qbpass.models.errors import BundleError
from qbpass.models.find_contract import find_contract
from qbpass.models.freeze import GRAPH_FILE, freeze
from qbpass.models.graph_io import read_graph, weight_files
from qbpass.models.recipe import Recipe, mismatches, recipe_of
from qbpass.models.session import SessionSpec, one_line
from qbpass.rewrites.apply import Emission, rewrite_graph
from qbpass.rewrites.extents import ExtentRule
from qbpass.rewrites.manifest import MANIFEST_FILE, Interface, Manifest, PlannedSite
from qbpass.rewrites.plan import Layout, RewritePlan, SitePlan
from qbpass.rewrites.planner import make_plan

MAX_MANIFEST_BYTES = 64 * 2**20
GRAPHS: dict[Literal["guarded", "specialized"], dict[str, Emission]] = {
    "guarded": {"decoder.onnx": "guarded"},
    "specialized": {"decoder.active.onnx": "active", "decoder.native.onnx": "native"},
}


@dataclass(frozen=True)
class Bundle:
    """An opened bundle. `reference` is the frozen decoder; weights of every graph lie in `folder`."""

    folder: Path
    manifest: Manifest
    reference: Decoder

    @property
    def extents(self) -> ExtentRule:
        return ExtentRule(self.manifest.exact_extent_modulus, self.manifest.exact_extent_residues)

    def graph(self, name: str = "decoder.onnx") -> bytes:
        """A rewritten graph's bytes, checked against the manifest. Raises BundleError where they differ."""
        if name not in self.manifest.files:
            raise BundleError(
                f"{self.folder} has no {name} (it was written with --emit {self.manifest.emission}): "
                "rewrite the model with --emit guarded"
            )
        path = self.folder / name
        if not path.is_file() or file_digest(path) != self.manifest.files[name]:
            raise BundleError(f"{path} is missing or not the file the manifest names: rewrite the model again")
        return path.read_bytes()


def write_bundle(
    decoder: Decoder,
    folder: Path,
    layout: Layout,
    spec: SessionSpec,
    *,
    phase_mask: int = 2,
    max_queries: int = 4,
    emit: Literal["guarded", "specialized"] = "guarded",
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[Bundle, RewritePlan, AdmissionReport]:
    """Freeze, admit, plan, rewrite and write. The bundle appears in `folder` whole or not at all.

    Raises RewriteRefused (planner.py), BundleError where `folder` holds something else, and what freezing raises.
    """
    if folder.exists() and not (folder / MANIFEST_FILE).is_file() and any(folder.iterdir()):
        raise BundleError(f"{folder} is not empty and not a bundle: choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        progress("freezing: ONNX Runtime's own optimizer")
        frozen = freeze(decoder, staging, spec)
        if frozen.folder != staging:
            frozen = _copy_frozen(frozen, staging)
        progress("looking for attention sites")
        report = admit(frozen)
        plan = make_plan(
            frozen, report, layout, spec, phase_mask=phase_mask, max_queries=max_queries, progress=progress
        )
        for name, emission in GRAPHS[emit].items():
            progress(f"rewriting: {name}")
            model = rewrite_graph(frozen, plan, emission)
            (staging / name).write_bytes(model.SerializeToString(deterministic=True))
        progress("writing the manifest: digests of every file")
        manifest = _manifest(frozen, plan, spec, staging, emit)
        for name in manifest.tokenizer_files:
            shutil.copyfile(decoder.tokenizer_files[name], staging / name)
        (staging / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=1))
        _publish(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return open_bundle(folder), plan, report


def _copy_frozen(frozen: Decoder, staging: Path) -> Decoder:
    """A decoder that was frozen before comes along with its weights, since a bundle's weights lie in its folder."""
    from dataclasses import replace

    for path in (frozen.path, *weight_files(frozen.model, frozen.folder).values()):
        shutil.copyfile(path, staging / (GRAPH_FILE if path == frozen.path else path.name))
    return replace(frozen, path=staging / GRAPH_FILE)


def _manifest(
    frozen: Decoder, plan: RewritePlan, spec: SessionSpec, staging: Path, emit: Literal["guarded", "specialized"]
) -> Manifest:
    names = [*GRAPHS[emit], GRAPH_FILE]
    return Manifest(
        qbpass_version=version("qbpass"),
        layout=plan.layout,
        phase_mask=plan.phase_mask,
        max_queries=plan.max_queries,
        emission=emit,
        exact_extent_modulus=plan.extents.modulus,
        exact_extent_residues=plan.extents.residues,
        segments=plan.segments,
        sites=tuple(_planned(entry) for entry in plan.sites),
        head=plan.head,
        head_evidence=dict(plan.head_evidence),
        interface=Interface.of(frozen.contract),
        context_length=frozen.context_length,
        eos_token_ids=frozen.eos_token_ids,
        recipe=recipe_of(frozen, spec),
        files={name: file_digest(staging / name) for name in names},
        tokenizer_files=tuple(sorted(frozen.tokenizer_files)),
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
        evidence=dict(entry.evidence),
    )


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


def open_bundle(folder: Path) -> Bundle:
    """Read and check a bundle's manifest and reference graph. Raises BundleError with what to do."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise BundleError(
            f"{folder} is not a bundle (no {MANIFEST_FILE}): make one with `qbpass rewrite MODEL {folder}`"
        )
    if path.stat().st_size > MAX_MANIFEST_BYTES:
        raise BundleError(f"{path} is larger than {MAX_MANIFEST_BYTES:,} bytes: this is no manifest")
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise BundleError(
            f"{path} is not a manifest this qbpass reads ({_first(error)}): rewrite the model again"
        ) from error
    model = read_graph(folder / GRAPH_FILE)
    contract = find_contract(model)
    rule = ExtentRule(manifest.exact_extent_modulus, manifest.exact_extent_residues)
    if manifest.layout == "qb" and manifest.segments < rule.segments(manifest.max_queries):
        raise BundleError(f"{path} has fewer value segments than its extents need: rewrite the model again")
    if Interface.of(contract) != manifest.interface:
        raise BundleError(f"{folder / GRAPH_FILE} is not the graph the manifest describes: rewrite the model again")
    files = {name: folder / name for name in manifest.tokenizer_files if (folder / name).is_file()}
    reference = Decoder(folder / GRAPH_FILE, model, contract, manifest.context_length, manifest.eos_token_ids, files)
    return Bundle(folder, manifest, reference)


def check_recipe(bundle: Bundle, spec: SessionSpec) -> Recipe:
    """This process's recipe. Raises BundleError where it is not the bundle's: then its reference is another one."""
    here = recipe_of(bundle.reference, spec)
    differences = mismatches(bundle.manifest.recipe, here)
    if differences:
        more = f" (and {len(differences) - 3} more)" if len(differences) > 3 else ""
        raise BundleError(
            f"this process can't reproduce the bundle's reference: {'; '.join(differences[:3])}{more}: "
            "run it as it was made, or rewrite the model here"
        )
    return here


def plan_for(bundle: Bundle, layout: Layout, spec: SessionSpec) -> RewritePlan:
    """A plan of another layout over the bundle's own reference, with the bundle's phases and width."""
    manifest = bundle.manifest
    return make_plan(
        bundle.reference,
        admit(bundle.reference),
        layout,
        spec,
        phase_mask=manifest.phase_mask,
        max_queries=manifest.max_queries,
    )


def _first(error: ValidationError) -> str:
    entry = error.errors()[0]
    return one_line(ValueError(f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}"), 120)
