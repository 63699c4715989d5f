"""Where qbpass keeps what it can make again: exports of builtin models, frozen graphs, straight-line graphs."""

from __future__ import annotations

import os
from pathlib import Path

from qbpass.models.errors import ModelFileError


def cache_folder() -> Path:
    """$QBPASS_CACHE, or ~/.cache/qbpass; made where it is not there yet.

    Raises ModelFileError where it can't be made.
    """
    chosen = os.environ.get("QBPASS_CACHE")
    try:
        folder = Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "qbpass"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
        raise ModelFileError(
            f"the cache folder can't be made ({error}): set QBPASS_CACHE to a folder you can write"
        ) from error
    return folder
