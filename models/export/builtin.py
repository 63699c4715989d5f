"""Sources that need no files: what they are called, what identifies their weights, how they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qbpass.models.errors import ExportError
from qbpass.models.export import smollm2, tiny
from qbpass.models.export.loaded import LoadedModel, Progress

BUILTIN_PREFIX = "builtin:"


@dataclass(frozen=True)
class Builtin:
    """identity: changes when the weights do; load: from transformers' attention implementation to a model."""

    identity: str
    load: Callable[[str, Progress], LoadedModel]


BUILTINS = {
    "builtin:smollm2-135m": Builtin(smollm2.SHA256, smollm2.load_smollm2),
    "builtin:tiny": Builtin(f"tiny-{tiny.SEED}", tiny.load_tiny),
}


def builtin(source: str) -> Builtin:
    """The builtin called `source`. Raises ExportError for any other name."""
    if source not in BUILTINS:
        raise ExportError(f"unknown source {source!r}: the builtin ones are {', '.join(sorted(BUILTINS))}")
    return BUILTINS[source]
