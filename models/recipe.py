"""The reference's identity: everything its bits may depend on. Another recipe is another reference."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from qbpass.models.decoder import Decoder
from qbpass.models.digests import file_digest, graph_digest
from qbpass.models.freeze import is_frozen
from qbpass.models.processor import gpu_libraries, gpu_name, instruction_sets, processor_name
from qbpass.models.session import COMPILING, PROVIDERS, SessionSpec
from qbpass.models.weight_digests import weight_digests

_TOKENIZING = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


class Recipe(BaseModel):
    """Compared field by field; digests are SHA-256 in hex."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    graph: str  # digest of the frozen graph
    weights: dict[str, str]  # external file -> digest
    tokenizer: dict[str, str]  # tokenizer file -> digest
    ort_version: str
    provider: str
    provider_options: dict[str, str]
    environment: dict[str, str]  # variables that ONNX Runtime, or its provider's libraries, choose kernels by
    processor: str
    instruction_sets: tuple[str, ...]
    gpu: str | None  # its name, driver, and the libraries whose kernels run on it
    threads: int = Field(ge=1)
    optimization_level: str
    prefill: str = Field(pattern=r"^(whole|one|chunks:[1-9][0-9]*)$")
    sampling: str
    stop_ids: tuple[int, ...]


def recipe_of(frozen: Decoder, spec: SessionSpec, *, prefill: str = "whole") -> Recipe:
    """The recipe of `frozen` run in this process by `spec`, greedy.

    prefill: how the prompt is fed: "whole", "chunks:N" (N tokens a call) or "one" (one token a call).
    Raises ProviderError where the provider is not there, ModelFileError where a file can't be read.
    """
    files = frozen.tokenizer_files
    return Recipe(
        graph=graph_digest(frozen.model),
        weights=weight_digests(frozen.model, frozen.weights),
        tokenizer={file: file_digest(files[file]) for file in _TOKENIZING if file in files},
        **machine_facts(spec),
        optimization_level=_level(frozen, spec),
        prefill=prefill,
        sampling="greedy",
        stop_ids=frozen.eos_token_ids,
    )


def machine_facts(spec: SessionSpec) -> dict[str, Any]:
    """The fields of a recipe that are this process's, whatever it runs: what a single kernel's bits depend on.

    Raises ProviderError where the provider is not there.
    """
    import onnxruntime as ort

    chosen = spec.provider_list()[0]
    name, options = chosen if isinstance(chosen, tuple) else (chosen, {})
    return {
        "ort_version": ort.__version__,
        "provider": name,
        "provider_options": options,
        "environment": {key: value for key, value in sorted(os.environ.items()) if key.startswith(_read_by(name))},
        "processor": processor_name(),
        "instruction_sets": instruction_sets(),
        "gpu": "; ".join((gpu_name(), *gpu_libraries())) if name == PROVIDERS["cuda"] else None,
        "threads": spec.threads,
    }


#: cuBLAS and cuDNN have switches of their own: NVIDIA_TF32_OVERRIDE=1 turns TF32 on whatever a session asks for.
_CUDA_VARIABLES = ("NVIDIA_TF32_OVERRIDE", "CUBLAS", "CUDNN")


def _read_by(provider: str) -> tuple[str, ...]:
    """What names of environment variables begin with that decide on kernels."""
    return ("ORT_", *_CUDA_VARIABLES) if provider == PROVIDERS["cuda"] else ("ORT_",)


def _level(frozen: Decoder, spec: SessionSpec) -> str:
    if not is_frozen(frozen.model):
        return "off"
    return "basic, frozen" if spec.provider in COMPILING else "default, frozen"


def mismatches(recipe: Recipe, other: Recipe) -> list[str]:
    """One readable line for each difference between a bundle's recipe and this process's; [] where there is none."""
    lines: list[str] = []
    for field in Recipe.model_fields:
        ours, theirs = getattr(recipe, field), getattr(other, field)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            lines.extend(
                _line(f"{_words(field)} {key}", ours.get(key), theirs.get(key))
                for key in sorted({*ours, *theirs})
                if ours.get(key) != theirs.get(key)
            )
        elif ours != theirs:
            lines.append(_line(_words(field), ours, theirs))
    return lines


def _words(field: str) -> str:
    return field.replace("_", " ")


def _line(name: str, ours: Any, theirs: Any) -> str:
    return f"{name}: bundle {_short(ours)}, this process {_short(theirs)}"


def _short(value: Any) -> str:
    if value is None:
        return "none"
    text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    is_digest = len(text) == 64 and set(text) <= set("0123456789abcdef")
    return f"{text[:12]}…" if is_digest else text or "none"
