"""Weights as kernels pack them, kept in a file: every session of a machine maps the one copy.

ONNX Runtime packs constant weights when a session is made, in memory of that session: two sessions hold them twice. It
can write them behind the weights in their external data (session.save_external_prepacked_constant_initializers, pull
request #23069). A session over such a file packs each weight as before, compares that with the file, lets its own copy
go and reads the file's pages, which all sessions and processes share. A file that other kernels packed is refused when
the session is made.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx

from qbpass.models.apart import Limits, write_optimized
from qbpass.models.decoder import Decoder
from qbpass.models.errors import ModelFileError
from qbpass.models.external_data import external_entry, external_tensors, packed_entries, set_external_entry
from qbpass.models.graph_io import read_graph
from qbpass.models.kept_weights import same_bytes
from qbpass.models.session import SessionSpec
from qbpass.models.weight_sources import weight_files

PACKED_FILE = "packed.data"


def pack_weights(frozen: Decoder, spec: SessionSpec) -> Decoder:
    """The frozen decoder, its graph written anew over packed.data beside it, which holds every weight, packed too.

    Files of the decoder's folder that it named before are gone where nothing names them any more; those elsewhere stay.
    Raises ModelFileError where ONNX Runtime can't load the graph, and where it writes other weights than the graph's.
    """
    files = weight_files(frozen.model, frozen.weights)
    size = frozen.path.stat().st_size + sum(path.stat().st_size for path in files.values())
    with tempfile.TemporaryDirectory(prefix=".packed.", dir=frozen.folder) as made:
        graph, folder = frozen.weights.in_one_folder(frozen.path.read_bytes())
        source = Path(made) / "source.onnx"
        source.write_bytes(graph)
        write_optimized(source, spec, Path(made) / "packed.onnx", Limits.of(size), folder=folder, packed=True)
        packed = {tensor.name: tensor for tensor in external_tensors(read_graph(Path(made) / "packed.onnx"))}
        for tensor in external_tensors(frozen.model):
            other = packed.get(tensor.name)
            if other is None or not _same(tensor, files, other, Path(made)):
                raise ModelFileError(f"ONNX Runtime did not write the weight {tensor.name!r}: leave out --pack-weights")
            _, offset, length = external_entry(other)
            set_external_entry(tensor, PACKED_FILE, offset, length, packed_entries(other))
        (Path(made) / "packed.data").replace(frozen.folder / PACKED_FILE)
    frozen.path.write_bytes(frozen.model.SerializeToString(deterministic=True))
    for location, path in files.items():
        if location not in frozen.elsewhere and location != PACKED_FILE:
            path.unlink()
    return replace(frozen, model=read_graph(frozen.path), elsewhere={})


def _same(tensor: onnx.TensorProto, files: Mapping[str, Path], other: onnx.TensorProto, folder: Path) -> bool:
    """Whether both name the same bytes; files: of the first, `folder`: where the second's lie."""
    location, offset, length = external_entry(tensor)
    name, at, long = external_entry(other)
    return length == long and same_bytes(files[location], offset, folder / name, at, length)
