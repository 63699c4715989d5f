"""What only exporting needs: an optional extra, asked for when it is used and never before."""

from __future__ import annotations

import importlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
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


@contextmanager
def quiet() -> Iterator[None]:
    """Inside the block, libraries' advice to developers and progress bars stay off the user's terminal."""
    loggers = [logging.getLogger(name) for name in ("torch", "torch.onnx", "transformers")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):  # progress bars write there
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
