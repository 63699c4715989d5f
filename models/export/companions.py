"""The files beside model.onnx: config.json, generation_config.json and the tokenizer's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qbpass.models.export.loaded import LoadedModel

# About where the weights came from and how torch would load them: nothing the exported fp32 graph answers to.
DROPPED = ("quantization_config", "transformers_version")


def write_companions(loaded: LoadedModel, folder: Path) -> None:
    """Write what a runtime needs beside the graph. No Hugging Face weights."""
    config = loaded.model.config.to_dict()
    _write_json(folder / "config.json", _public(config))
    _write_json(folder / "generation_config.json", _generation_config(loaded.model))
    loaded.write_tokenizer(folder)


def _generation_config(model: Any) -> dict[str, Any]:
    """The model's own generation defaults, or the special tokens of its config where it has none."""
    settings = model.generation_config.to_diff_dict() if model.generation_config is not None else {}
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        settings.setdefault(key, getattr(model.config, key, None))
    return {key: value for key, value in _public(settings).items() if value is not None}


def _public(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in DROPPED and not key.startswith("_")}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
