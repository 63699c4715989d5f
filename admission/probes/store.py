"""Answers that were found once, in qbpass's cache folder: one file an answer, whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

MAX_RECORD_BYTES = 2**20

Model = TypeVar("Model", bound=BaseModel)


@cache
def code_version() -> str:
    """SHA-256 (hex) of this package's sources: an answer of other code is no answer of this code's."""
    state = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        state.update(path.name.encode() + path.read_bytes())
    return state.hexdigest()


def key_of(*parts: Any) -> str:
    """SHA-256 (hex) of values that JSON holds, and of the probes' code."""
    text = json.dumps([code_version(), *parts], sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Store:
    """fresh: everything is measured again, but for the keys in `made`, which this run has measured already."""

    folder: Path
    fresh: bool = False
    made: frozenset[str] = frozenset()

    def load(self, key: str, model: type[Model]) -> Model | None:
        """What is kept under the key; None where there is nothing, or nothing that can be read."""
        path = self._path(key)
        if (self.fresh and key not in self.made) or not path.is_file() or path.stat().st_size > MAX_RECORD_BYTES:
            return None
        try:
            return model.model_validate_json(path.read_bytes())
        except ValidationError:
            return None

    def save(self, key: str, value: BaseModel) -> None:
        write_whole(self._path(key), value.model_dump_json(indent=1).encode())

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


def write_whole(path: Path, data: bytes) -> None:
    """Written beside `path`, then moved: a reader, and a run that is killed, finds the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def as_plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts in the form that JSON gives back."""
    plain: dict[str, Any] = json.loads(json.dumps(facts, default=list))
    return plain
