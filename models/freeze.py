"""The frozen graph: what ONNX Runtime runs after its own optimizer. It is the reference; rewrites start there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

import onnx

from qbpass.models.apart import Limits, write_optimized
from qbpass.models.branches import BRANCH_KEY
from qbpass.models.decoder import Decoder
from qbpass.models.digests import graph_digest
from qbpass.models.errors import ContractError, ModelFileError, ProviderError
from qbpass.models.find_interface import find_interface
from qbpass.models.flat_graph import read_flat_graph
from qbpass.models.graph_io import read_graph
from qbpass.models.graph_order import subgraphs
from qbpass.models.interface import Interface
from qbpass.models.kept_weights import keep_in_place
from qbpass.models.one_stream import pin_batch
from qbpass.models.session import COMPILING, SessionSpec
from qbpass.models.weight_sources import weight_files

FROZEN_KEY = "qbpass.frozen"  # the onnxruntime version that optimized the graph
SOURCE_KEY = "qbpass.source"  # digest of the file it was made from, as it was
PROVIDER_KEY = "qbpass.provider"  # whose optimizer it went through: fusions differ between providers
GRAPH_FILE = "reference.onnx"
DATA_FILE = "reference.data"


def is_frozen(model: onnx.ModelProto) -> bool:
    """Whether `freeze` wrote this graph."""
    return any(entry.key == FROZEN_KEY for entry in model.metadata_props)


def freeze(decoder: Decoder, folder: Path, spec: SessionSpec, *, copy_weights: bool = False) -> Decoder:
    """The decoder over what ONNX Runtime's default optimizer leaves, written to `folder` as reference.onnx and .data.

    Weights whose bytes a weight file of the user's holds stay there, and `elsewhere` of what is returned says where.
    reference.data holds the others over 1 KiB: those the optimizer made or changed (a tied embedding, transposed), and
    those that lay inside the user's .onnx file. It is not there where there are none.

    copy_weights: reference.data holds every one, and the folder can be moved to another machine.

    Both files are made in a folder beside `folder` and moved when complete: a run that fails or is killed before that
    leaves earlier work whole. A decoder that is frozen already is returned as it is.

    A provider that compiles its part of the graph leaves nothing that could be written out. For it the frozen graph is
    what the provider-independent ("basic") optimizer leaves, which is what such a provider is handed: with optimization
    off, OpenVINO gives that graph the bits that its default session gives the export.

    Raises ModelFileError where the disk is too small or the graph can't be loaded, ContractError where the optimizer
    changed the inputs or outputs, ProviderError as `open_session` does, and where the decoder was frozen for
    another one.
    """
    if is_frozen(decoder.model):
        _check_provider(decoder, spec)
        return decoder
    folder.parent.mkdir(parents=True, exist_ok=True)
    _check_space(decoder, folder.parent)
    with _staging(folder) as staging:
        _write_optimized(decoder, spec, staging)
        model = read_graph(staging / GRAPH_FILE)
        elsewhere = keep_in_place(model, staging / DATA_FILE, decoder, copy_all=copy_weights)
        _carry_branch(decoder.model, model)
        pin_batch(model, _same_interface(decoder, model))
        _strip_unused_opsets(model)
        _mark(model, decoder, spec)
        (staging / GRAPH_FILE).write_bytes(model.SerializeToString(deterministic=True))
        _publish(staging, folder, [file.resolve() for file in weight_files(decoder.model, decoder.weights).values()])
    path = folder / GRAPH_FILE
    model = read_graph(path, elsewhere=elsewhere)
    return replace(decoder, path=path, model=model, interface=find_interface(model), elsewhere=elsewhere)


def _write_optimized(decoder: Decoder, spec: SessionSpec, staging: Path) -> None:
    """Only the file that a session writes is wanted, and the session is another process's: the graph is a stranger's.

    What is optimized is the user's file as it is, not the decoder's model, whose batch is declared to be 1: the
    optimizer must do what it does where the file is deployed. A merged decoder is optimized as its flat branch.
    """
    source, folder = decoder.path, None
    if _branch(decoder.model) is not None:
        source, folder = staging / "flat.onnx", decoder.folder
        source.write_bytes(read_flat_graph(decoder.path).SerializeToString())
    limits = Limits.of(_bytes(decoder))
    if spec.provider not in COMPILING:
        write_optimized(source, spec, staging / GRAPH_FILE, limits, folder=folder)
        return
    spec.provider_list()  # raises where the provider is not there, though another one writes the graph
    cpu = replace(spec, provider="cpu")
    write_optimized(source, cpu, staging / GRAPH_FILE, limits, folder=folder, level="basic")


def _branch(model: onnx.ModelProto) -> str | None:
    return next((entry.value for entry in model.metadata_props if entry.key == BRANCH_KEY), None)


def _carry_branch(model: onnx.ModelProto, frozen: onnx.ModelProto) -> None:
    """That a graph is one branch of two is known from its metadata alone."""
    branch = _branch(model)
    if branch is not None and _branch(frozen) is None:
        frozen.metadata_props.add(key=BRANCH_KEY, value=branch)


def _check_provider(decoder: Decoder, spec: SessionSpec) -> None:
    frozen_for = next((entry.value for entry in decoder.model.metadata_props if entry.key == PROVIDER_KEY), None)
    if frozen_for != spec.provider:
        raise ProviderError(
            f"{decoder.path} was frozen for provider {frozen_for}, not for {spec.provider}: start from the export it "
            "was made from"
        )


def _check_space(decoder: Decoder, folder: Path) -> None:
    """Asks for half as much again as the source takes: ONNX Runtime writes all weights once, for a while, and constant
    folding adds copies (a tied embedding, transposed).
    """
    needed = _bytes(decoder) * 3 // 2
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelFileError(
            f"freezing {decoder.path} needs about {needed / 2**20:,.0f} MiB in {folder}, which has "
            f"{free / 2**20:,.0f} MiB free: free some space, or choose another folder"
        )


def _bytes(decoder: Decoder) -> int:
    """Of the graph and its weights."""
    files = weight_files(decoder.model, decoder.weights).values()
    return decoder.path.stat().st_size + sum(file.stat().st_size for file in files)


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _publish(staging: Path, folder: Path, users: Collection[Path]) -> None:
    """The old graph goes, then the weights come, then the graph: a reader never finds a graph with others' weights.

    users: weight files that are not to be touched, should they lie in `folder`.
    """
    folder.mkdir(exist_ok=True)
    (folder / GRAPH_FILE).unlink(missing_ok=True)
    if (folder / DATA_FILE).resolve() not in users:
        (folder / DATA_FILE).unlink(missing_ok=True)
    for path in (*staging.glob(f"{Path(DATA_FILE).stem}*{Path(DATA_FILE).suffix}"), staging / GRAPH_FILE):
        path.replace(folder / path.name)


def _same_interface(decoder: Decoder, model: onnx.ModelProto) -> Interface:
    """The frozen graph's interface. Every part but the problems is the decoder's own, also after the optimizer."""
    found = find_interface(model)
    for field in fields(Interface):
        before, after = getattr(decoder.interface, field.name), getattr(found, field.name)
        if field.name != "problems" and before != after:
            raise ContractError(
                f"ONNX Runtime's optimizer left another {field.name} than {decoder.path} has ({before} became "
                f"{after}): report this model to the qbpass developers"
            )
    return found


def _strip_unused_opsets(model: onnx.ModelProto) -> None:
    """ONNX Runtime imports every operator set it knows; other readers refuse those they don't."""

    def domains(graph: onnx.GraphProto) -> Iterator[str]:
        for node in graph.node:
            yield node.domain
            for subgraph in subgraphs(node):
                yield from domains(subgraph)

    used = {"", *domains(model.graph), *(node.domain for function in model.functions for node in function.node)}
    kept = [entry for entry in model.opset_import if entry.domain in used or entry.domain == "ai.onnx"]
    del model.opset_import[:]
    model.opset_import.extend(kept)


def _mark(model: onnx.ModelProto, decoder: Decoder, spec: SessionSpec) -> None:
    import onnxruntime as ort

    source = graph_digest(read_graph(decoder.path))
    notes = {FROZEN_KEY: ort.__version__, SOURCE_KEY: source, PROVIDER_KEY: spec.provider}
    for key, value in notes.items():
        model.metadata_props.add(key=key, value=value)
