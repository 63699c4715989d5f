"""What only exporting needs: an optional extra, asked for when it is used and never before."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from qbpass.models.errors import ExportError

MODULES = ("torch", "transformers", "onnxscript", "gguf", "accelerate", "tokenizers")


def require(module: str) -> Any:
    """The module `module`. Raises ExportError that names the extra where it, or what it needs, is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _missing(error.name or module) from error


def check_extra() -> None:
    """Raises ExportError where a package of the extra is missing: before a download, and without importing torch."""
    for module in MODULES:
        if importlib.util.find_spec(module) is None:
            raise _missing(module)


def _missing(module: str) -> ExportError:
    return ExportError(f"exporting needs {module}, which is not installed: pip install 'qbpass[export]'")
