"""An export's folder: written beside its place, and moved there when it is whole."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qbpass.models.errors import ExportError
from qbpass.models.export.companions import write_companions
from qbpass.models.export.loaded import LoadedModel, Progress
from qbpass.models.export.torch_export import write_onnx
from qbpass.models.session import one_line


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """A temporary folder beside `out` that becomes `out` when the block ends, and is removed when it raises.

    `out` is absent or an empty folder. Raises ExportError where it can't be written, or is no longer empty.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise ExportError(f"can't write beside {out}: {error.strerror}") from error
    try:
        yield folder
        folder.chmod(0o755)  # mkdtemp's folders are private
        folder.replace(out)
    except OSError as error:
        raise ExportError(f"can't write {out}: {error.strerror or one_line(error)}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_export(loaded: LoadedModel, opset: int, folder: Path, progress: Progress) -> None:
    """Write the graph, its weights and what belongs beside them into `folder`."""
    progress("tracing and writing the graph", None)
    write_onnx(loaded.model, opset, folder)
    progress("writing config and tokenizer", None)
    write_companions(loaded, folder)
