"""The weights of a bundle: named by folder, size and digest where they are the user's own, in the bundle where not.

What a manifest names is a stranger's word until the recipe's digests are compared, which every command that runs a
bundle does first: a file is used only if it is the one the bundle was made from.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from qbpass.models.decoder import Decoder
from qbpass.models.errors import BundleError
from qbpass.models.freeze import GRAPH_FILE
from qbpass.models.weight_sources import weight_files
from qbpass.rewrites.manifest import WeightFile


def describe_weights(frozen: Decoder) -> dict[str, WeightFile]:
    """Every weight file of a decoder that lies in its bundle's folder."""
    return {
        location: WeightFile(
            folder=str(frozen.elsewhere[location].absolute()) if location in frozen.elsewhere else None,
            bytes=path.stat().st_size,
        )
        for location, path in sorted(weight_files(frozen.model, frozen.weights).items())
    }


def weights_elsewhere(weights: Mapping[str, WeightFile], manifest: Path) -> dict[str, Path]:
    """Location -> folder of what lies outside the bundle. Raises BundleError for a folder that is no absolute path."""
    folders = {location: Path(file.folder) for location, file in weights.items() if file.folder is not None}
    for location, folder in folders.items():
        if not folder.is_absolute() or "\0" in str(folder):
            raise BundleError(
                f"{manifest} names no absolute folder for the weights {location!r}: rewrite the model again"
            )
    return folders


def check_sizes(weights: Mapping[str, WeightFile], files: Mapping[str, Path]) -> None:
    """A changed file is most often one of another size, and that is known without reading it.

    Raises BundleError.
    """
    for location, path in files.items():
        expected = weights[location].bytes if location in weights else None
        found = path.stat().st_size
        if expected is not None and found != expected:
            raise BundleError(
                f"{path} is not the file this bundle was made from ({found:,} bytes, not {expected:,}): put that file "
                "back, or rewrite the model"
            )


def lie_in(decoder: Decoder, folder: Path) -> bool:
    """Whether a weight file of the decoder lies in `folder` or below."""
    files = weight_files(decoder.model, decoder.weights).values()
    return any(file.resolve().is_relative_to(folder.resolve()) for file in files)


def take_frozen(frozen: Decoder, staging: Path, reserved: Collection[str], *, copy_weights: bool) -> Decoder:
    """A decoder that was frozen before, its graph in `staging`, its weights where they are, or copied along.

    reserved: names of files that the bundle writes itself. Raises BundleError where a weight file to be copied has one,
    or the disk is too small.
    """
    files = weight_files(frozen.model, frozen.weights)
    shutil.copyfile(frozen.path, staging / GRAPH_FILE)
    if not copy_weights:
        elsewhere = {location: frozen.weights.folder_of(location).resolve() for location in files}
        return replace(frozen, path=staging / GRAPH_FILE, elsewhere=elsewhere)
    _check_space(staging, sum(path.stat().st_size for path in files.values()))
    for location, path in files.items():
        if location in reserved:
            raise BundleError(
                f"{path} can't be copied into a bundle, which has a file {location} of its own: export the model again"
            )
        (staging / location).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, staging / location)
    return replace(frozen, path=staging / GRAPH_FILE, elsewhere={})


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise BundleError(
            f"copying the weights needs {needed / 2**20:,.0f} MiB in {folder.parent}, which has "
            f"{free / 2**20:,.0f} MiB free: free some space, choose another folder, or leave --copy-weights out"
        )
