"""A decoder as qbpass works on it: the graph without its weights, and where everything else lies."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import onnx

from qbpass.models.contract import DecoderContract


@dataclass(frozen=True)
class Decoder:
    """`model` holds no external weight bytes; weights stay in `folder` and are named by the graph's own references."""

    path: Path  # the .onnx file
    model: onnx.ModelProto
    contract: DecoderContract
    context_length: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    tokenizer_files: dict[str, Path] = field(default_factory=dict)  # "tokenizer.json", "chat_template.jinja", ...

    @property
    def folder(self) -> Path:
        return self.path.parent
