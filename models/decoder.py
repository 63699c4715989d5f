"""A decoder as qbpass works on it: the graph without its weights, and where everything else lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import onnx

from qbpass.models.contract import DecoderContract
from qbpass.models.interface import Interface
from qbpass.models.weight_sources import WeightSources


@dataclass(frozen=True)
class Decoder:
    """`model` holds no external weight bytes; they stay where they lie and are named by the graph's own references."""

    path: Path  # the .onnx file
    model: onnx.ModelProto
    interface: Interface
    context_length: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    tokenizer_files: dict[str, Path] = field(default_factory=dict)  # "tokenizer.json", "chat_template.jinja", ...
    elsewhere: Mapping[str, Path] = field(default_factory=dict)  # external location -> its folder, if not `folder`

    @cached_property
    def contract(self) -> DecoderContract:
        """The complete interface. Raises ContractError where the graph is not a decoder that qbpass can run."""
        return self.interface.contract

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def weights(self) -> WeightSources:
        """Where each external location lies."""
        return WeightSources(self.folder, self.elsewhere)
