"""onnxruntime-genai's model builder, in a process of its own: its modules have names like `builders`, `loaders`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from qbpass.models.errors import ExportError

BUILDER = "onnxruntime_genai"


def missing_builder() -> str | None:
    """Why the builder can't be used here, or None."""
    return None if importlib.util.find_spec(BUILDER) else "onnxruntime-genai is not installed"


def build_genai(source: Path, out: Path, precision: str, execution: str = "cpu") -> None:
    """The builder's folder for that execution provider. Raises ExportError where the builder is missing or fails."""
    if missing_builder():
        raise ExportError("the genai graphs need onnxruntime-genai: pip install 'qbpass[genai]'")
    with tempfile.TemporaryDirectory() as cache:
        options = ["-m", str(source), "-o", str(out), "-p", precision, "-e", execution, "-c", cache]
        command = [sys.executable, "-W", "ignore", "-m", f"{BUILDER}.models.builder", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise ExportError(f"onnxruntime-genai's builder failed: {last[0]}")
