"""Where a graph's external weights lie: each location in one folder, checked before anything in it is opened.

A frozen graph names the user's own weight files for whatever the optimizer left as it was, and a file beside itself for
the rest. A location is never followed out of its folder, and what it names must be a plain file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from onnx import external_data_helper

from qbpass.models.errors import ModelFileError
from qbpass.models.external_data import (
    external_entry,
    external_tensors,
    packed_ends,
    packed_entries,
    set_external_entry,
)


@dataclass(frozen=True)
class WeightSources:
    """`folder` holds every location but those in `elsewhere`, whose folder is the one named there."""

    folder: Path
    elsewhere: Mapping[str, Path] = field(default_factory=dict)

    def folder_of(self, location: str) -> Path:
        return self.elsewhere.get(location, self.folder)

    def path(self, location: str, tensor: str) -> Path:
        """`location` as a path inside its folder; the file need not exist. tensor: who names it, for the message.

        Raises ModelFileError where it leads out of its folder, or can't be followed: a file from strangers must not
        name any other file of this machine.
        """
        return _inside(location, tensor, self.folder_of(location))

    def file(self, location: str, tensor: str) -> Path:
        """`path`, of a file that is there. Raises ModelFileError as `path` does, and where it is not."""
        path = self.path(location, tensor)
        if not path.is_file():
            raise ModelFileError(
                f"the external data of initializer {tensor!r} is missing: {path} does not exist; "
                f"{self._way_out(location)}"
            )
        return path

    def has(self, tensor: onnx.TensorProto) -> bool:
        """Whether a tensor's data can be read: it lies in the graph, or its file is there."""
        if not external_data_helper.uses_external_data(tensor):
            return True
        return self.path(external_entry(tensor)[0], tensor.name).is_file()

    def _way_out(self, location: str) -> str:
        if location not in self.elsewhere:
            return "put it beside the .onnx file"
        return (
            "it is the model's own file: move it back there, write its new folder into the bundle's qbpass.json, or "
            "rewrite the model (with --copy-weights a bundle needs no model)"
        )

    def in_one_folder(self, graph: bytes) -> tuple[bytes, Path]:
        """The serialized graph with its locations named from one folder that all their files are in or below, and that
        folder: ONNX Runtime takes one, and follows nothing out of it.

        Raises ModelFileError as `file` does, and where no folder is above all of them.
        """
        model = onnx.ModelProto.FromString(graph)
        tensors = [(tensor, *external_entry(tensor)) for tensor in external_tensors(model)]
        named = {location: tensor.name for tensor, location, _, _ in tensors}
        files = {location: self.file(location, name).resolve() for location, name in named.items()}
        if not files:
            return graph, self.folder
        try:
            above = Path(os.path.commonpath([file.parent for file in files.values()]))
        except ValueError as error:  # Windows: on several drives
            raise ModelFileError(
                f"the weights lie on several drives ({', '.join(map(str, files.values()))}): rewrite the model with "
                "--copy-weights"
            ) from error
        for tensor, location, offset, length in tensors:
            inside = files[location].relative_to(above).as_posix()
            set_external_entry(tensor, inside, offset, length, packed_entries(tensor))
        serialized: bytes = model.SerializeToString()
        return serialized, above


def weight_files(model: onnx.ModelProto, sources: WeightSources) -> dict[str, Path]:
    """Every external location the model names -> its checked path, in order of first use.

    Raises ModelFileError as `read_graph` does for external data.
    """
    found: dict[str, Path] = {}
    for tensor in external_tensors(model):
        location = external_entry(tensor)[0]
        if location not in found:
            found[location] = sources.file(location, tensor.name)
    return found


def check_external(model: onnx.ModelProto, sources: WeightSources, *, there: bool) -> None:
    """Each file is asked for once. there: whether files must exist and hold what is read of them; else only where they
    would lie is checked.

    Raises ModelFileError where external data is missing, truncated or lies outside its folder.
    """
    sizes: dict[str, int] = {}
    for tensor in external_tensors(model):
        location, offset, length = external_entry(tensor)
        if location not in sizes:
            path = sources.file(location, tensor.name) if there else sources.path(location, tensor.name)
            sizes[location] = path.stat().st_size if there else -1
        end = max([offset + length, *packed_ends(tensor)])
        if there and sizes[location] < end:
            raise ModelFileError(
                f"{sources.folder_of(location) / location} is truncated: initializer {tensor.name!r} needs bytes up to "
                f"{end:,}, the file has {sizes[location]:,}; download or export it again"
            )


def _inside(location: str, tensor: str, folder: Path) -> Path:
    where = f"the external data of initializer {tensor!r}"
    if PurePosixPath(location).is_absolute() or PureWindowsPath(location).drive or location.startswith("\\"):
        raise ModelFileError(
            f"{where} has the absolute path {location!r}: external data must lie in the model's folder"
        )
    if ".." in PurePosixPath(location.replace("\\", "/")).parts:
        raise ModelFileError(
            f"{where} leaves the model's folder ({location!r}): external data must lie in the model's folder"
        )
    if "\0" in location:
        raise ModelFileError(f"{where} has a path with a zero byte: export the model again")
    if "_ORT_MEM_ADDR_" in location:  # ONNX Runtime would take the offset for an address in its memory
        raise ModelFileError(f"{where} names memory, not a file: export the model again")
    path = folder / location
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
        path.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, or links in a circle
        raise ModelFileError(
            f"{where} has a path that can't be followed ({location[:80]!r}): export the model again"
        ) from error
    if not inside:
        raise ModelFileError(
            f"{where} ({location!r}) is a link out of the model's folder: put the real file into {folder} "
            "(for example `cp -L`)"
        )
    return path
