"""A decoder as qbpass works on it: the graph without its weights, and where everything else lies."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import onnx

from qbpass.models.contract import DecoderContract
from qbpass.models.interface import Interface


@dataclass(frozen=True)
class Decoder:
    """`model` holds no external weight bytes; weights stay in `folder` and are named by the graph's own references."""

    path: Path  # the .onnx file
    model: onnx.ModelProto
    interface: Interface
    context_length: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    tokenizer_files: dict[str, Path] = field(default_factory=dict)  # "tokenizer.json", "chat_template.jinja", ...

    @cached_property
    def contract(self) -> DecoderContract:
        """The complete interface. Raises ContractError where the graph is not a decoder that qbpass can run."""
        return self.interface.contract

    @property
    def folder(self) -> Path:
        return self.path.parent
