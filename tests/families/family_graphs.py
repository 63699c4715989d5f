"""Each family's graph by each exporter: made once a machine, and kept in qbpass's cache folder by what went into it."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from family_models import build
from torchscript_export import write_torchscript
from whisper_decoder import write_whisper_decoder

import qbpass.models.export
from qbpass.models.cache import cache_folder
from qbpass.models.export.folder import appearing
from qbpass.models.export.names import MODEL_FILE
from qbpass.models.export.torch_export import write_onnx

PACKAGES = ("torch", "transformers", "onnxscript")
HERE = Path(__file__).parent
CODE = [HERE / f"{name}.py" for name in ("family_models", "torchscript_export", "whisper_decoder")]
CODE += sorted(Path(qbpass.models.export.__file__).parent.glob("*.py"))


@dataclass(frozen=True)
class Exporter:
    """dynamo: torch's newer exporter, as qbpass uses it; else the older one. attention: what transformers calls it."""

    dynamo: bool
    attention: str
    opset: int


EXPORTERS = {
    "dynamo-eager": Exporter(True, "eager", 18),
    "dynamo-sdpa": Exporter(True, "sdpa", 20),
    "dynamo-onnx": Exporter(True, "sdpa", 23),
    "torchscript-eager": Exporter(False, "eager", 18),
    "torchscript-sdpa": Exporter(False, "sdpa", 18),
}


# torch's newer exporter takes seconds a graph, its older one a tenth of that: of the former, what each form has of its
# own is looked at always, and the rest where slow tests run.
QUICK = {
    "dynamo-eager": {
        *{"llama", "gemma2", "gpt2", "bloom", "mpt", "falcon_alibi"},
        *{"gpt_oss", "deepseek_v3", "bamba", "lfm2", "mixtral"},
    },
    "dynamo-sdpa": {"qwen3", "mistral", "gemma3", "gpt_neox", "falcon", "olmo2", "whisper"},
    "dynamo-onnx": {"llama", "gemma3", "whisper"},
}


def family_graph(family: str, exporter: str) -> Path:
    """The graph of `family` as `exporter` writes it. Raises ExportError where qbpass refuses to export it."""
    folder = cache_folder() / "families" / f"{family}-{exporter}-{code_digest()}"
    if not folder.is_dir():
        with appearing(folder) as written:
            _write(family, EXPORTERS[exporter], written)
    return folder / MODEL_FILE


def _write(family: str, exporter: Exporter, folder: Path) -> None:
    model = build(family, exporter.attention)
    if family == "whisper":
        write_whisper_decoder(model, folder, dynamo=exporter.dynamo, opset=exporter.opset)
    elif exporter.dynamo:
        write_onnx(model, exporter.opset, folder)
    else:
        write_torchscript(model, folder)


@cache
def code_digest() -> str:
    """Of all that shapes a graph: versions, the code that makes models, and the code that exports them."""
    parts = [f"{package} {metadata.version(package)}" for package in PACKAGES]
    parts += [ast.dump(ast.parse(file.read_text(encoding="utf-8"))) for file in CODE]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
