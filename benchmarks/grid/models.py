"""The grid's models, each made once a machine and kept in qbpass's cache folder by what went into it."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from importlib import metadata
from pathlib import Path

import qbpass.models.export
from grid.axes import ONLY_GENAI, Model
from grid.base_model import write_base_model
from grid.builder import build_genai
from grid.formats import convert
from qbpass.models.cache import cache_folder
from qbpass.models.export import export_source
from qbpass.models.export.folder import appearing

PACKAGES = ("torch", "transformers", "onnxscript", "onnxruntime")
HERE = Path(__file__).parent
CODE = [HERE / f"{name}.py" for name in ("base_model", "builder", "formats", "models")]
CODE += sorted(Path(qbpass.models.export.__file__).parent.glob("*.py"))


def model_file(model: Model) -> Path:
    """The .onnx file, made now if it is not in the cache. Raises ExportError where an exporter fails or is missing."""
    if model.exporter == "genai" and model.weights in ("fp32", *ONLY_GENAI):
        folder = _folder(f"genai-{model.weights}")
        if not folder.is_dir():
            with appearing(folder) as written:
                build_genai(_base_model(), written, model.weights.removeprefix("builder-"))
        return folder / "model.onnx"
    if model.weights == "fp32":
        folder = _folder(model.exporter)
        if not folder.is_dir():
            export_source(str(_base_model()), folder, attention=model.exporter)
        return folder / "model.onnx"
    folder = _folder(f"{model.exporter}-{model.weights}")
    if not folder.is_dir():
        source = model_file(Model(model.exporter, "fp32"))
        with appearing(folder) as written:
            convert(source, model.weights, written / "model.onnx")
    return folder / "model.onnx"


def _base_model() -> Path:
    folder = _folder("base")
    if not folder.is_dir():
        with appearing(folder) as written:
            write_base_model(written)
    return folder


def _folder(name: str) -> Path:
    if name.startswith("genai"):
        return cache_folder() / "grid" / f"{name}-{_digest((*PACKAGES, 'onnxruntime-genai'))}"
    return cache_folder() / "grid" / f"{name}-{_digest(PACKAGES)}"


@cache
def _digest(packages: tuple[str, ...]) -> str:
    """Of all that shapes a graph: versions of packages, and code without its comments and layout."""
    parts = [f"{package} {_version(package)}" for package in packages]
    parts += [ast.dump(ast.parse(file.read_text(encoding="utf-8"))) for file in CODE]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
