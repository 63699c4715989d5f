"""Exports of the builtin models are made once: keyed by everything that goes into them."""

from __future__ import annotations

import ast
import hashlib
from importlib import metadata
from pathlib import Path

from qbpass.models.cache import cache_folder
from qbpass.models.errors import ExportError
from qbpass.models.export.attention import attention_form, checked_opset
from qbpass.models.export.builtin import Builtin, builtin
from qbpass.models.export.folder import appearing, write_export
from qbpass.models.export.loaded import Progress, silent
from qbpass.models.export.names import MODEL_FILE
from qbpass.models.export.requirements import check_extra

VERSIONED = ("torch", "transformers", "onnxscript", "tokenizers")  # packages that shape what is written


def cached_export(
    source: str, attention: str = "eager", opset: int | None = None, progress: Progress | None = None
) -> Path:
    """The folder of a builtin source's export, made now if it is not in the cache. Read it, and write nothing into it.

    Raises ExportError as export_source does.
    """
    chosen = builtin(source)
    form = attention_form(attention)
    checked = checked_opset(form, opset)
    report = progress or silent
    check_extra()
    folder = cache_folder() / "exports" / _key(source, chosen, attention, checked)
    if (folder / MODEL_FILE).is_file():
        report("using the cached export", 1.0)
        return folder
    loaded = chosen.load(form.implementation, report)
    try:
        with appearing(folder) as written:
            write_export(loaded, checked, written, report)
    except ExportError:
        if not (folder / MODEL_FILE).is_file():  # else another process has just made the same export
            raise
    return folder


def _key(source: str, chosen: Builtin, attention: str, opset: int) -> str:
    parts = [chosen.identity, attention, str(opset)]
    parts += [f"{package} {metadata.version(package)}" for package in VERSIONED]
    parts += [_code(file) for file in sorted(Path(__file__).parent.glob("*.py"))]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return f"{source.partition(':')[2]}-{attention}-opset{opset}-{digest[:16]}"


def _code(file: Path) -> str:
    """A file's code without its comments and layout: a remark corrected is no reason to export again."""
    return ast.dump(ast.parse(file.read_text(encoding="utf-8")))
