"""A Hugging Face folder: config.json, safetensors and tokenizer files. Nothing is executed, nothing unpickled."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from qbpass.models.errors import ExportError
from qbpass.models.export.loaded import LoadedModel, Progress
from qbpass.models.export.requirements import quiet, require
from qbpass.models.session import one_line

# Copied as they are: the runtime reads tokenizer.json and the chat template, and nothing else reads the rest as code.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)


def load_hf(folder: Path, implementation: str, progress: Progress) -> LoadedModel:
    """The causal language model in `folder`, float32. Local files only, safetensors only, never code from the folder.

    Raises ExportError where config.json, safetensors or tokenizer.json are missing, or transformers can't load them.
    """
    _check_folder(folder)
    progress("loading transformers", None)
    torch, transformers = require("torch"), require("transformers")
    progress(f"loading the weights of {folder.name}", None)
    try:
        with quiet():
            _check_decoder(transformers, folder)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                str(folder.absolute()),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=torch.float32,
                attn_implementation=implementation,
            )
    except ExportError:
        raise
    except Exception as error:  # of transformers, safetensors and what they call: no common base
        raise ExportError(_why_not_loaded(folder, implementation, error)) from error
    return LoadedModel(model.eval(), lambda out: _copy_tokenizer(folder, out))


def _check_decoder(transformers: Any, folder: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(
        str(folder.absolute()), local_files_only=True, trust_remote_code=False
    )
    if config.is_encoder_decoder:
        raise ExportError(
            f"{folder} is an encoder-decoder ({config.model_type}): qbpass exports language models that decode alone"
        )


def _why_not_loaded(folder: Path, implementation: str, error: Exception) -> str:
    if "does not support an attention implementation" in str(error):
        return (
            f"{folder}: transformers writes this model's attention in one way only, not as {implementation}: use "
            "--attention eager"
        )
    return f"transformers could not load {folder}: {one_line(error)}"


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ExportError(f"{folder} has no config.json: give the folder of a Hugging Face model")
    if not any(folder.glob("*.safetensors")):
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth"))
        reason = "has only pickled weights, and qbpass unpickles nothing" if pickled else "has no weights"
        raise ExportError(f"{folder} {reason}: give a folder with .safetensors files")
    if not (folder / "tokenizer.json").is_file():
        raise ExportError(f"{folder} has no tokenizer.json: save a fast tokenizer into it first")


def _copy_tokenizer(source: Path, out: Path) -> None:
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)
