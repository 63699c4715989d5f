"""onnxruntime-genai's model builder, in a process of its own: its modules have names like `builders`, `loaders`."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from family_graphs import code_digest
from family_models import build, transformers

from qbpass.models.cache import cache_folder
from qbpass.models.export.folder import appearing
from qbpass.models.export.requirements import quiet
from qbpass.models.export.tiny import byte_tokenizer

BUILDER = "onnxruntime_genai"
# Its command line, once for each graph, in a process that imports torch and transformers once.
BUILD = """
import json, runpy, sys
for source, out, precision in json.loads(sys.argv[1]):
    cache = out + "-cache"
    sys.argv = ["builder", "-m", source, "-o", out, "-p", precision, "-e", "cpu", "-c", cache]
    runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")
"""


def missing_builder() -> str | None:
    """Why the builder can't be used here, or None."""
    return None if importlib.util.find_spec(BUILDER) else "onnxruntime-genai is not installed"


def genai_graphs(wanted: list[tuple[str, str]]) -> dict[tuple[str, str], Path]:
    """(family, precision) -> the builder's folder, all made by one process and kept in qbpass's cache folder."""
    parts = [code_digest(), metadata.version("onnxruntime-genai"), BUILD, json.dumps(wanted)]
    made = cache_folder() / "families" / f"genai-{hashlib.sha256(''.join(parts).encode()).hexdigest()[:16]}"
    if not made.is_dir():
        with appearing(made) as folder, tempfile.TemporaryDirectory() as saved:
            jobs = [(str(_saved(family, Path(saved))), _name(folder, family, p), p) for family, p in wanted]
            command = [sys.executable, "-W", "ignore", "-c", BUILD, json.dumps(jobs)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
            assert done.returncode == 0, done.stderr[-2000:]
    return {(family, precision): Path(_name(made, family, precision)) for family, precision in wanted}


def _name(folder: Path, family: str, precision: str) -> str:
    return str(folder / f"{family}-{precision}")


def _saved(family: str, parent: Path) -> Path:
    folder = parent / family
    if not folder.is_dir():
        with quiet():
            build(family).save_pretrained(folder)
        tokenizer: Any = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), eos_token="<|end|>")
        tokenizer.save_pretrained(folder)
    return folder
