"""Digests of weight files; those of large ones are kept, for reading gigabytes at every start takes longer than loading
them does.

A digest is kept under the file's path, size, inode and both of its times, so another file, or one that was written to,
has none. A file whose times are of the last moments is not kept: it could change again within a tick of the clock.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import onnx

from qbpass.models.cache import cache_folder
from qbpass.models.digests import file_digest
from qbpass.models.weight_sources import WeightSources, weight_files

LEAST_BYTES = 64 * 2**20  # smaller files are read in a moment
_SETTLED_NS = 2 * 10**9  # the coarsest clock of a file system that is in use
_DIGEST = re.compile(r"[0-9a-f]{64}")


def weight_digests(model: onnx.ModelProto, sources: WeightSources) -> dict[str, str]:
    """External location -> SHA-256 (hex) of its file, in sorted order."""
    return {location: kept_digest(path) for location, path in sorted(weight_files(model, sources).items())}


def kept_digest(path: Path) -> str:
    """`file_digest`, where the file was not read before as it is now; else what it was then."""
    state = _state(path)
    if state is None or state.st_size < LEAST_BYTES:
        return file_digest(path)
    entry = cache_folder() / "digests" / _name(path, state)
    with suppress(OSError, ValueError):
        kept = entry.read_text(encoding="ascii")
        if _DIGEST.fullmatch(kept):
            return kept
    settled = max(state.st_mtime_ns, state.st_ctime_ns) + _SETTLED_NS < time.time_ns()
    digest = file_digest(path)
    after = _state(path)
    if settled and after is not None and _name(path, after) == entry.name:
        _keep(entry, digest)
    return digest


def _state(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:  # the reader says what is wrong with it
        return None


def _name(path: Path, state: os.stat_result) -> str:
    facts = (path.resolve(), state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    return hashlib.sha256("\0".join(map(str, facts)).encode("utf-8", "surrogateescape")).hexdigest()


def _keep(entry: Path, digest: str) -> None:
    """Whole or not at all. A cache that can't be written to only costs time."""
    with suppress(OSError):
        entry.parent.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=entry.parent, delete=False, encoding="ascii") as file:
            file.write(digest)
        Path(file.name).replace(entry)
