"""A .gguf file: its tensors dequantized to float32, its tokenizer and chat template written as Hugging Face's files."""

from __future__ import annotations

from pathlib import Path

from qbpass.models.errors import ExportError
from qbpass.models.export.gguf_reading import read_once
from qbpass.models.export.loaded import LoadedModel, Progress
from qbpass.models.export.requirements import quiet, require
from qbpass.models.session import one_line


def load_gguf(path: Path, implementation: str, progress: Progress) -> LoadedModel:
    """The causal language model in the file `path`, float32.

    Raises ExportError where the file is not GGUF, or of an architecture that transformers can't load.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ExportError(f"{path} is not a GGUF file")
    progress("loading transformers", None)
    torch, transformers = require("torch"), require("transformers")
    progress(f"dequantizing {path.name}", None)
    folder, local = str(path.absolute().parent), {"gguf_file": path.name, "local_files_only": True}
    try:
        with read_once(), quiet():
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **local)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, trust_remote_code=False, dtype=torch.float32, attn_implementation=implementation, **local
            )
    except Exception as error:  # of transformers, gguf, safetensors and tokenizers: no common base
        raise ExportError(f"transformers could not load {path}: {one_line(error)}") from error
    return LoadedModel(model.eval(), lambda out: tokenizer.save_pretrained(str(out)))
