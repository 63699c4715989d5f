"""A decoder from what a user has: an .onnx file, or the folder an exporter wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qbpass.models.config_files import context_length, eos_token_ids, genai_model
from qbpass.models.decoder import Decoder
from qbpass.models.errors import ModelFileError
from qbpass.models.find_interface import find_interface
from qbpass.models.flat_graph import read_flat_graph
from qbpass.models.graph_io import Weights
from qbpass.models.one_stream import pin_batch
from qbpass.models.own_files import check_own

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "config.json",
    "generation_config.json",
)
# Usual names of a decoder; the first that exists is taken. Of several, decoder_model.onnx is the one without a past.
_USUAL_NAMES = ("model.onnx", "decoder_with_past_model.onnx", "decoder_model_merged.onnx", "decoder_model.onnx")


def load_decoder(path: Path, *, elsewhere: Mapping[str, Path] | None = None) -> Decoder:
    """The decoder in `path`: an .onnx file, or a folder as exporters write them (files at its top or under onnx/).

    elsewhere: as `load_graph` has it.
    Raises ModelFileError where no graph or several are found, or a file is damaged; ContractError where the graph is
    not a decoder that qbpass can run.
    """
    decoder = load_graph(path, elsewhere=elsewhere)
    _ = decoder.contract  # raises where the interface has a problem
    return decoder


def load_graph(path: Path, weights: Weights = "required", elsewhere: Mapping[str, Path] | None = None) -> Decoder:
    """As `load_decoder`, for any graph: its `interface` says what it takes, gives and lacks, its `contract` may raise.

    A merged decoder becomes the flat graph of its branch with a past, functions are written into the graph, and an
    open batch is declared to be 1.

    weights: "ignored" where the files of external weights need not exist.
    elsewhere: of a frozen graph, the folders of external locations that do not lie beside it (`Decoder.elsewhere`).
    Raises ModelFileError as `load_decoder` does.
    """
    graph = find_graph(path)
    files = _companions(graph.parent)
    model = read_flat_graph(graph, weights, elsewhere)
    interface = find_interface(model)
    pin_batch(model, interface)
    return Decoder(
        path=graph,
        model=model,
        interface=interface,
        context_length=context_length(files),
        eos_token_ids=eos_token_ids(files),
        tokenizer_files={name: file for name, file in files.items() if name in TOKENIZER_FILES},
        elsewhere=elsewhere or {},
    )


def find_graph(path: Path) -> Path:
    """The .onnx file that `path` is or holds.

    In a folder: the file genai_config.json names; else one of the usual names, at the top and then under onnx/; else
    the only .onnx file. Raises ModelFileError where nothing or more than one fits.
    """
    if not path.is_dir():
        return path
    if (path / "genai_config.json").is_file():
        check_own(path / "genai_config.json", path)
        return _genai_graph(path)
    places = [place for place in (path, path / "onnx") if place.is_dir()]
    for place in places:
        usual = [place / name for name in _USUAL_NAMES if (place / name).is_file()]
        if usual:
            check_own(usual[0], path)
            return usual[0]
    found = sorted(file for place in places for file in place.glob("*.onnx") if file.is_file())
    if len(found) == 1:
        check_own(found[0], path)
        return found[0]
    if found:
        names = ", ".join(str(file.relative_to(path)) for file in found[:6])
        more = ", …" if len(found) > 6 else ""
        raise ModelFileError(f"{path} holds {len(found)} graphs ({names}{more}): name the file you mean")
    raise ModelFileError(
        f"no .onnx file in {path} or {path / 'onnx'}: give the .onnx file, or make one with `qbpass export`"
    )


def _genai_graph(folder: Path) -> Path:
    config = folder / "genai_config.json"
    section = genai_model(config).get("decoder")
    names = _genai_names(section) if isinstance(section, dict) else []
    if not names:
        raise ModelFileError(f"{config} names no decoder file (model.decoder.filename): give the .onnx file itself")
    if len(names) > 1:
        listed = ", ".join(name[:80] for name in names[:6])
        raise ModelFileError(f"{config} describes a pipeline of {len(names)} graphs ({listed}): name the file you mean")
    graph = folder / names[0]
    if Path(names[0]).is_absolute() or ".." in Path(names[0]).parts:
        raise ModelFileError(
            f"{config} names a decoder outside its folder ({names[0][:80]!r}): give the .onnx file itself"
        )
    check_own(graph, folder)
    return graph


def _genai_names(section: dict[str, Any]) -> list[str]:
    """Files of model.decoder: its filename, else those of its pipeline, a list of {stage: {"filename": …}}."""
    stages = [section]
    if not section.get("filename") and isinstance(section.get("pipeline"), list):
        stages = [stage for entry in section["pipeline"] if isinstance(entry, dict) for stage in entry.values()]
    names = [stage.get("filename") for stage in stages if isinstance(stage, dict)]
    return list(dict.fromkeys(name for name in names if isinstance(name, str) and name and "\0" not in name))


def _companions(folder: Path) -> dict[str, Path]:
    """Files beside the graph; for a graph under onnx/ also those of the folder above. The nearer file wins."""
    places = [folder, folder.parent] if folder.name == "onnx" else [folder]
    names = (*TOKENIZER_FILES, "genai_config.json")
    found = {name: place / name for place in reversed(places) for name in names if (place / name).is_file()}
    for file in found.values():
        check_own(file, file.parent)
    return found
