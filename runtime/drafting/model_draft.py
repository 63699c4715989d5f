"""`--draft PATH`: a bundle or a plain export that drafts, in a session of its own, over a cache of its own."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from qbpass.admission.admit import admit
from qbpass.models.decoder import Decoder
from qbpass.models.digests import graph_digest
from qbpass.models.errors import ModelFileError
from qbpass.models.loading import load_decoder
from qbpass.models.session import SessionSpec, open_session
from qbpass.models.tokenizer_match import first_difference, largest_id
from qbpass.models.weight_digests import weight_digests
from qbpass.rewrites.bundle import Bundle, open_bundle
from qbpass.rewrites.manifest import MANIFEST_FILE
from qbpass.runtime.cropped_target import CroppedTarget
from qbpass.runtime.model_drafter import ModelDrafter
from qbpass.runtime.open_target import BundleTarget, open_target

#: Rows that a plain export is fed together, where several are known.
KNOWN_ROWS = 16


class ModelDraft:
    """A draft model for targets of one bundle. Its session is shared by all drafters that it makes."""

    def __init__(self, path: Path, bundle: Bundle, spec: SessionSpec):
        """Raises ModelFileError where its tokenizer is another one, and what loading raises."""
        self.spec = spec
        self._vocab_size = bundle.manifest.interface.vocab_size
        self._bundle = open_bundle(path) if (path / MANIFEST_FILE).is_file() else None
        self.decoder: Decoder = load_decoder(path) if self._bundle is None else self._bundle.reference
        _check_tokens(path, bundle.reference, self.decoder)
        self._target: BundleTarget | None = None
        self._session: Any = None

    def drafter(self) -> ModelDrafter:
        """With a cache of its own."""
        if self._bundle is not None:
            if self._target is None:
                self._target = open_target(self._bundle, self.spec, lean=True)
            drafter = ModelDrafter.sharing(self._target, self._bundle.manifest, self.spec)
            return ModelDrafter(drafter.target, self._vocab_size)
        decoder = self.decoder
        if self._session is None:
            graph = decoder.model.SerializeToString()
            self._session = open_session(graph, self.spec, weights=decoder.weights, optimize=True)
        target = CroppedTarget(
            self._session,
            decoder.contract,
            self.spec,
            context_length=decoder.context_length,
            max_queries=KNOWN_ROWS,
            share_cache=_appends(decoder),
        )
        return ModelDrafter(target, self._vocab_size)

    @property
    def digest(self) -> str:
        """SHA-256 of the digests of its graph and its weights."""
        parts = [graph_digest(self.decoder.model), *weight_digests(self.decoder.model, self.decoder.weights).values()]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _appends(decoder: Decoder) -> bool:
    """Whether every layer is an operator that appends to the memory it is given: then nothing is cut off by copying."""
    chained = {entry.chain.layer for entry in admit(decoder).sites if entry.chain is not None}
    return chained == {pair.layer for pair in decoder.contract.kv}


def _check_tokens(path: Path, target: Decoder, draft: Decoder) -> None:
    difference = first_difference(target.tokenizer_files, draft.tokenizer_files)
    if difference is not None:
        raise ModelFileError(f"{path} can't draft for this bundle: {difference}: choose a model of the same tokenizer")
    widest = largest_id(draft.tokenizer_files)
    if widest is not None and widest >= draft.contract.vocab_size:
        raise ModelFileError(
            f"{path} can't draft for this bundle: its tokenizer has token {widest}, and it gives "
            f"{draft.contract.vocab_size} logits: export it again"
        )
    if widest is None and draft.contract.vocab_size != target.contract.vocab_size:
        raise ModelFileError(
            f"{path} can't draft for this bundle: neither has a tokenizer, and it gives {draft.contract.vocab_size} "
            f"logits where the target gives {target.contract.vocab_size}"
        )
