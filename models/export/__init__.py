"""Exporting decoders to ONNX: Hugging Face folders, .gguf files and builtin models. Needs the extra `export`."""

from __future__ import annotations

from qbpass.models.export.cached import cached_export
from qbpass.models.export.source import export_source

__all__ = ["cached_export", "export_source"]
