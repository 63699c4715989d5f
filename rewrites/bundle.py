"""A bundle: the rewritten decoder, the frozen reference it came from, and a manifest that says what they are.

The folder holds qbpass.json, decoder.onnx (guarded) or decoder.active.onnx and decoder.native.onnx (specialized),
reference.onnx (the frozen graph), reference.data (weights of all of these graphs that are not the user's own), and the
tokenizer's files. The user's own weights are named by folder, size and digest, and stay where they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from qbpass.admission.admit import admit
from qbpass.models.decoder import Decoder
from qbpass.models.digests import file_digest
from qbpass.models.errors import BundleError
from qbpass.models.find_interface import find_interface
from qbpass.models.freeze import GRAPH_FILE
from qbpass.models.graph_io import read_graph
from qbpass.models.recipe import Recipe, mismatches, recipe_of
from qbpass.models.session import SessionSpec, one_line
from qbpass.models.weight_sources import WeightSources, weight_files
from qbpass.rewrites.bundle_weights import check_sizes, weights_elsewhere
from qbpass.rewrites.extents import ExtentRule
from qbpass.rewrites.manifest import MANIFEST_FILE, Interface, Manifest
from qbpass.rewrites.phases import mask_problem
from qbpass.rewrites.plan import Layout, RewritePlan
from qbpass.rewrites.planner import make_plan

MAX_MANIFEST_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Bundle:
    """An opened bundle. `reference` is the frozen decoder; every graph's weights lie where the reference's do."""

    folder: Path
    manifest: Manifest
    reference: Decoder

    @property
    def weights(self) -> WeightSources:
        return self.reference.weights

    @property
    def extents(self) -> ExtentRule:
        return ExtentRule(self.manifest.exact_extent_modulus, self.manifest.exact_extent_residues)

    @property
    def appends_in_place(self) -> bool:
        """Whether every layer's operator was shown to append to one buffer: then the frozen graph and the rewritten one
        can have the same.
        """
        chained = {chain.layer for chain in self.manifest.chains}
        return chained == {pair.layer for pair in self.reference.contract.kv}

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
    elsewhere = weights_elsewhere(manifest.weights, path)
    model = read_graph(folder / GRAPH_FILE, elsewhere=elsewhere)
    check_sizes(manifest.weights, weight_files(model, WeightSources(folder, elsewhere)))
    interface = find_interface(model)
    rule = ExtentRule(manifest.exact_extent_modulus, manifest.exact_extent_residues)
    if manifest.layout == "qb" and manifest.segments < rule.segments(manifest.max_queries):
        raise BundleError(f"{path} has fewer value segments than its extents need: rewrite the model again")
    if Interface.of(interface.contract) != manifest.interface:
        raise BundleError(f"{folder / GRAPH_FILE} is not the graph the manifest describes: rewrite the model again")
    problem = mask_problem(manifest.phase_mask, manifest.recipe.prefill)
    if problem is not None:
        raise BundleError(f"{path} contradicts itself ({problem.partition(':')[0]}): rewrite the model again")
    files = {name: folder / name for name in manifest.tokenizer_files if (folder / name).is_file()}
    ends = manifest.context_length, manifest.eos_token_ids
    reference = Decoder(folder / GRAPH_FILE, model, interface, *ends, files, elsewhere)
    return Bundle(folder, manifest, reference)


def check_recipe(bundle: Bundle, spec: SessionSpec, *, prefill: str | None = None) -> Recipe:
    """This process's recipe. Raises BundleError where it is not the bundle's: then its reference is another one.

    prefill: how this process reads its prompts (Recipe.prefill); None where it does as the bundle says.
    """
    here = recipe_of(bundle.reference, spec, prefill=bundle.manifest.recipe.prefill if prefill is None else prefill)
    differences = mismatches(bundle.manifest.recipe, here)
    if differences:
        more = f" (and {len(differences) - 3} more)" if len(differences) > 3 else ""
        raise BundleError(
            f"this process can't reproduce the bundle's reference: {'; '.join(differences[:3])}{more}: "
            "run it as it was made, or rewrite the model here"
        )
    return here


def plan_for(bundle: Bundle, layout: Layout, spec: SessionSpec) -> RewritePlan:
    """A plan of another layout over the bundle's own reference, with the bundle's phases, width and forced repairs."""
    manifest = bundle.manifest
    return make_plan(
        bundle.reference,
        admit(bundle.reference),
        layout,
        spec,
        phase_mask=manifest.phase_mask,
        prefill=manifest.recipe.prefill,
        max_queries=manifest.max_queries,
        force_repairs=[repair.kind for repair in manifest.repairs if repair.forced],
    )


def _first(error: ValidationError) -> str:
    entry = error.errors()[0]
    return one_line(ValueError(f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}"), 120)
