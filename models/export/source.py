"""`qbpass export SOURCE OUT`: which loader a source needs."""

from __future__ import annotations

import shutil
from pathlib import Path

from qbpass.models.errors import ExportError
from qbpass.models.export.attention import attention_form, checked_opset
from qbpass.models.export.builtin import BUILTIN_PREFIX
from qbpass.models.export.cached import cached_export
from qbpass.models.export.folder import appearing, write_export
from qbpass.models.export.gguf import load_gguf
from qbpass.models.export.hf import load_hf
from qbpass.models.export.loaded import LoadedModel, Progress, silent
from qbpass.models.export.requirements import check_extra


def export_source(
    source: str,
    out: Path,
    *,
    attention: str = "eager",
    opset: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Export `source` into the new folder `out` and return it: model.onnx, model.onnx.data, config and tokenizer files.

    source: a Hugging Face folder (config.json and safetensors), a .gguf file, `builtin:smollm2-135m` or `builtin:tiny`.
    attention: eager | sdpa | onnx; opset: the form's default where None. `out` appears whole or not at all.
    Raises ExportError where a source, form or folder can't be used, or the extra `export` is not installed.
    """
    report = progress or silent
    form = attention_form(attention)
    checked = checked_opset(form, opset)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"{out} exists and is not an empty folder: choose another folder, or remove it first")
    if source.startswith(BUILTIN_PREFIX):
        cached = cached_export(source, attention, checked, report)
        with appearing(out) as folder:
            shutil.copytree(cached, folder, dirs_exist_ok=True)
        return out
    loaded = _load(source, form.implementation, report)
    with appearing(out) as folder:
        write_export(loaded, checked, folder, report)
    return out


def _load(source: str, implementation: str, progress: Progress) -> LoadedModel:
    path = Path(source).expanduser()
    if path.is_dir():
        check_extra()
        return load_hf(path, implementation, progress)
    if path.is_file() and path.suffix == ".gguf":
        check_extra()
        return load_gguf(path, implementation, progress)
    problem = "is not a folder or a .gguf file" if path.exists() else "does not exist"
    raise ExportError(
        f"{source} {problem}: give a Hugging Face folder, a .gguf file, builtin:smollm2-135m or builtin:tiny"
    )
