"""The grid's models, each made once a machine and kept in qbpass's cache folder by what went into it."""

from __future__ import annotations

from pathlib import Path

from grid.axes import ONLY_GENAI, SMOLLM2, Model
from grid.base_model import write_base_model
from grid.builder import build_genai
from grid.formats import convert
from grid.kept import kept_folder
from grid.smollm2 import smollm2_file
from qbpass.models.export import export_source
from qbpass.models.export.folder import appearing

CODE = [Path(__file__).parent / f"{name}.py" for name in ("base_model", "builder", "formats")]


def model_file(model: Model) -> Path:
    """The .onnx file, made now if it is not in the cache. Raises ExportError where an exporter fails or is missing."""
    if model.exporter.startswith(SMOLLM2):
        return smollm2_file(model)
    folder = kept_folder(f"{model.exporter}-{model.weights}", CODE, genai=model.exporter == "genai")
    if folder.is_dir():
        return folder / "model.onnx"
    if model.weights == "fp32" and model.exporter != "genai":
        export_source(str(_base_model()), folder, attention=model.exporter)
        return folder / "model.onnx"
    with appearing(folder) as written:
        if model.exporter == "genai" and model.weights in ("fp32", *ONLY_GENAI):
            build_genai(_base_model(), written, model.weights.removeprefix("builder-"))
        else:
            convert(model_file(Model(model.exporter, "fp32")), model.weights, written / "model.onnx")
    return folder / "model.onnx"


def _base_model() -> Path:
    folder = kept_folder("base", CODE)
    if not folder.is_dir():
        with appearing(folder) as written:
            write_base_model(written)
    return folder
