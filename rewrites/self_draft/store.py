"""Drafts in the cache folder: a graph and its quantized weights, whole or not there, the last used ones.

A draft is made again from its bundle in seconds to minutes, so it is no part of the bundle: a folder of the cache named
by a digest of all that it was made from. Whatever can't be read is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx

from qbpass.models.cache import cache_folder
from qbpass.models.digests import file_digest
from qbpass.models.errors import BundleError
from qbpass.models.session import SessionSpec, open_session
from qbpass.models.weight_sources import WeightSources, weight_files
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.self_draft.graph import one_row_graph
from qbpass.rewrites.self_draft.quantize import QuantForm, quantize_products

GRAPH, WEIGHTS, FACTS = "draft.onnx", "draft.data", "draft.json"

#: What all kept drafts may take together, and how many are kept at least: the one in use is never too large.
MOST_BYTES, AT_LEAST = 8 * 2**30, 1


class DraftError(BundleError):
    """A bundle that no draft can be made of."""


def drafts_folder() -> Path:
    return cache_folder() / "drafts"


def draft_key(bundle: Bundle, form: QuantForm) -> str:
    """SHA-256 of everything a draft is made from."""
    recipe, manifest = bundle.manifest.recipe, bundle.manifest
    facts = {
        "graph": recipe.graph,
        "weights": recipe.weights,
        "chains": sorted(chain.layer for chain in manifest.chains),
        "form": asdict(form),
        "onnxruntime": recipe.ort_version,
        "qbpass": version("qbpass"),
        "schema": 1,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def stored_draft(
    bundle: Bundle,
    form: QuantForm,
    *,
    fresh: bool = False,
    graph: onnx.ModelProto | None = None,
    progress: Callable[[str, int, int], None] = lambda text, done, total: None,
) -> Path:
    """The folder of a draft of `bundle` in `form`, made if it is not there or damaged.

    graph: the bundle's one-row graph, for callers that need several forms of it. Raises DraftError where nothing can be
    quantized, BundleError where the disk is too small.
    """
    folder = drafts_folder() / draft_key(bundle, form)
    if not fresh and _whole(folder):
        with suppress(OSError):
            os.utime(folder)
        return folder
    drafts_folder().mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".new.", dir=drafts_folder()))
    try:
        _write(bundle, form, staging, graph, progress)
        shutil.rmtree(folder, ignore_errors=True)
        staging.replace(folder)
    except OSError as error:
        raise BundleError(f"the draft can't be written ({error.strerror or error}): free some space") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    _forget_old(folder)
    return folder


def open_draft(bundle: Bundle, folder: Path, spec: SessionSpec) -> Any:
    """A session of its own over a stored draft; what was not quantized is read from the bundle's own weights."""
    return open_session(folder / GRAPH, spec, weights=draft_weights(bundle, folder))


def draft_weights(bundle: Bundle, folder: Path) -> WeightSources:
    """Where a stored draft's weights lie."""
    return WeightSources(folder, {name: bundle.weights.folder_of(name) for name in _locations(bundle)})


def draft_facts(folder: Path) -> dict[str, Any]:
    """What `draft.json` says: form, products, digests of both files, bytes."""
    facts: dict[str, Any] = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    return facts


def _locations(bundle: Bundle) -> set[str]:
    return set(weight_files(bundle.reference.model, bundle.weights))


def _write(
    bundle: Bundle,
    form: QuantForm,
    folder: Path,
    graph: onnx.ModelProto | None,
    progress: Callable[[str, int, int], None],
) -> None:
    if WEIGHTS in _locations(bundle):
        raise DraftError(f"{bundle.folder} has a weight file named {WEIGHTS}, as drafts have: rename it, and rewrite")
    chained = frozenset(chain.layer for chain in bundle.manifest.chains)
    model = onnx.ModelProto()
    model.CopyFrom(one_row_graph(bundle.reference, chained) if graph is None else graph)
    count = quantize_products(
        model,
        bundle.manifest.interface.logits,
        bundle.weights,
        form,
        folder / WEIGHTS,
        lambda done, total: progress(f"quantizing a draft: {form.name}", done, total),
    )
    if not count:
        raise DraftError(
            f"{bundle.folder} has no float32 product to quantize, so it can't draft for itself: use --draft ngram, or "
            "name a smaller model"
        )
    (folder / GRAPH).write_bytes(model.SerializeToString(deterministic=True))
    facts = {
        "form": asdict(form),
        "products": count,
        "files": {name: file_digest(folder / name) for name in (GRAPH, WEIGHTS)},
        "bytes": (folder / WEIGHTS).stat().st_size,
    }
    (folder / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")


def _whole(folder: Path) -> bool:
    """Whether the folder holds a draft of the size its facts say, with the graph they name."""
    try:
        facts = draft_facts(folder)
        there = (folder / WEIGHTS).stat().st_size == facts["bytes"]
        return bool(there and file_digest(folder / GRAPH) == facts["files"][GRAPH])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _forget_old(newest: Path) -> None:
    """Remove the drafts that were not used for longest, until the rest fits."""
    drafts = [path for path in drafts_folder().iterdir() if path.is_dir() and not path.name.startswith(".")]
    drafts.sort(key=lambda path: (path == newest, path.stat().st_mtime), reverse=True)
    total = 0
    for place, path in enumerate(drafts):
        total += sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        if place >= AT_LEAST and total > MOST_BYTES:
            shutil.rmtree(path, ignore_errors=True)
