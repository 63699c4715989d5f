"""What a MODEL argument names, as the graph that counts: the one ONNX Runtime's optimizer leaves."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from qbpass.models.session import SessionSpec

if TYPE_CHECKING:
    from qbpass.models.decoder import Decoder


@contextmanager
def frozen_decoder(path: Path, spec: SessionSpec, progress: Callable[[str], None]) -> Iterator[Decoder]:
    """The frozen decoder of an .onnx file, an export's folder or a bundle; frozen here, for a while, if need be.

    Raises what load_decoder, open_bundle and freeze raise.
    """
    from qbpass.models.freeze import freeze, is_frozen
    from qbpass.models.loading import load_decoder
    from qbpass.rewrites.bundle import open_bundle
    from qbpass.rewrites.manifest import MANIFEST_FILE

    decoder = open_bundle(path).reference if (path / MANIFEST_FILE).is_file() else load_decoder(path)
    with tempfile.TemporaryDirectory(prefix="qbpass.") as folder:
        if not is_frozen(decoder.model):
            progress("freezing into a temporary folder: the graph that counts is what ONNX Runtime's optimizer leaves")
        yield freeze(decoder, Path(folder) / "frozen", spec)
