"""What a MODEL argument names: the graph that counts (what ONNX Runtime's optimizer leaves), or the file's own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from qbpass.models.session import SessionSpec

if TYPE_CHECKING:
    from qbpass.models.decoder import Decoder
    from qbpass.models.graph_io import Weights


@contextmanager
def frozen_decoder(path: Path, spec: SessionSpec, progress: Callable[[str], None]) -> Iterator[Decoder]:
    """The frozen decoder of an .onnx file, an export's folder or a bundle; frozen here, for a while, if need be.

    Its interface may be incomplete. Raises what load_graph, open_bundle and freeze raise.
    """
    from qbpass.models.freeze import freeze, is_frozen

    decoder = own_decoder(path)
    with tempfile.TemporaryDirectory(prefix="qbpass.") as folder:
        if not is_frozen(decoder.model):
            progress("freezing into a temporary folder: the graph that counts is what ONNX Runtime's optimizer leaves")
        yield freeze(decoder, Path(folder) / "frozen", spec)


def own_decoder(path: Path, weights: Weights = "required") -> Decoder:
    """The decoder in the file's own form: as exported, or a bundle's reference. Nothing is run.

    Raises what load_graph and open_bundle raise.
    """
    from qbpass.models.loading import load_graph
    from qbpass.rewrites.bundle import open_bundle
    from qbpass.rewrites.manifest import MANIFEST_FILE

    return open_bundle(path).reference if (path / MANIFEST_FILE).is_file() else load_graph(path, weights)
