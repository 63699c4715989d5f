"""What every kind of source becomes before it is exported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Progress = Callable[[str, float | None], None]  # (what is happening, fraction done or None where unknown)


def silent(message: str, fraction: float | None) -> None:
    """The progress callback of a caller that gave none."""


@dataclass(frozen=True)
class LoadedModel:
    """A torch decoder ready to be traced, and how to write what belongs beside it.

    model: a transformers causal language model in eval mode, float32, on the CPU.
    write_tokenizer: writes tokenizer.json and its companions into a folder.
    """

    model: Any
    write_tokenizer: Callable[[Path], None]
