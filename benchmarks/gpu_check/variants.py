"""The models that are checked: those named, each in half precision too, and onnxruntime-genai's form of a tiny one."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grid.base_model import write_base_model
from grid.builder import build_genai, missing_builder
from grid.formats import convert

from gpu_check.outcome import Skipped
from qbpass.models.export import cached_export
from qbpass.models.loading import load_decoder

BUILTIN = "builtin:"


def export(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"path"} of a MODEL argument: a builtin is exported into the cache, anything else is a path."""
    model = question["model"]
    path = cached_export(model) if model.startswith(BUILTIN) else Path(model)
    decoder = load_decoder(path)
    return {"path": str(path), "layers": len(decoder.contract.kv), "vocabulary": decoder.contract.vocab_size}


def half(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"path"} of the model in float16, cache and logits too, by ONNX Runtime's converter."""
    decoder = load_decoder(Path(question["path"]))
    out = Path(question["work"]) / "fp16"
    out.mkdir(parents=True, exist_ok=True)
    convert(decoder.path, "fp16", out / "model.onnx")
    for name, file in decoder.tokenizer_files.items():
        shutil.copyfile(file, out / name)
    for name in ("config.json", "generation_config.json"):
        if (decoder.folder / name).is_file():
            shutil.copyfile(decoder.folder / name, out / name)
    load_decoder(out)
    return {"path": str(out)}


def genai(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"path"} of a tiny decoder with fused attention, by onnxruntime-genai's builder for this provider."""
    provider, missing = question["spec"]["provider"], missing_builder()
    if missing:
        # The package for the CPU would bring the other onnxruntime.
        raise Skipped(f"{missing}: pip install onnxruntime-genai{'-cuda' if provider == 'cuda' else ''}")
    work = Path(question["work"])
    write_base_model(work / "base")
    precision = "fp16" if provider == "cuda" else "fp32"
    build_genai(work / "base", work / "genai", precision, execution="cuda" if provider == "cuda" else "cpu")
    return {"path": str(work / "genai"), "precision": precision}
