"""The grid's part on a real model, SmolLM2-135M-Instruct, kept in qbpass's cache folder by what went into it."""

from __future__ import annotations

from pathlib import Path

from grid.axes import ONLY_GENAI, SMOLLM2, Model
from grid.builder import build_genai
from grid.formats import convert
from grid.kept import kept_folder
from qbpass.models.export import cached_export
from qbpass.models.export.builtin import builtin
from qbpass.models.export.folder import appearing
from qbpass.models.export.loaded import silent
from qbpass.models.export.requirements import quiet

SOURCE = "builtin:smollm2-135m"
CODE = [Path(__file__).parent / f"{name}.py" for name in ("builder", "formats", "smollm2")]


def smollm2_file(model: Model) -> Path:
    """The .onnx file of a model whose exporter is called smollm2-sdpa, smollm2-genai, …

    Raises ExportError where an exporter fails or is missing.
    """
    exporter = model.exporter.removeprefix(SMOLLM2)
    if model.weights == "fp32" and exporter != "genai":
        return cached_export(SOURCE, exporter) / "model.onnx"
    folder = kept_folder(f"{model.exporter}-{model.weights}", CODE, genai=exporter == "genai")
    if not folder.is_dir():
        with appearing(folder) as written:
            if exporter == "genai" and model.weights in ("fp32", *ONLY_GENAI):
                build_genai(_hugging_face_folder(), written, model.weights.removeprefix("builder-"))
            else:
                convert(smollm2_file(Model(model.exporter, "fp32")), model.weights, written / "model.onnx")
    return folder / "model.onnx"


def _hugging_face_folder() -> Path:
    """What genai's builder reads."""
    folder = kept_folder("smollm2", CODE)
    if not folder.is_dir():
        with appearing(folder) as written, quiet():
            loaded = builtin(SOURCE).load("eager", silent)
            loaded.model.hf_quantizer = None  # it came from a .gguf file, and is float32 now
            if hasattr(loaded.model.config, "quantization_config"):
                del loaded.model.config.quantization_config
            loaded.model.save_pretrained(written)
            loaded.write_tokenizer(written)
    return folder
