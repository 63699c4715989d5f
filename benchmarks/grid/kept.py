"""Where a model that was made once is kept: in qbpass's cache folder, under a name that says all that went into it."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import qbpass.models.export
from qbpass.models.cache import cache_folder

PACKAGES = ("torch", "transformers", "onnxscript", "onnxruntime")


def kept_folder(name: str, code: Sequence[Path], *, genai: bool = False) -> Path:
    """The folder of `name`: keyed by versions, and by `code` and the export's own code without comments and layout."""
    packages = (*PACKAGES, "onnxruntime-genai") if genai else PACKAGES
    parts = [f"{package} {_version(package)}" for package in packages]
    files = (*code, *sorted(Path(qbpass.models.export.__file__).parent.glob("*.py")))
    parts += [ast.dump(ast.parse(file.read_text(encoding="utf-8"))) for file in files]
    return cache_folder() / "grid" / f"{name}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
