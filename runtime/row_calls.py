"""Calls of one row on the frozen graph itself, over the buffers that a chain's links share.

A chain has a link for each row that a call may have, and links without a row are run, too: on SmolLM2 in int4 a call of
one row through a chain of four costs 1.2 times the reference's. The frozen graph appends to the same memory, so it can
evaluate a row where there is but one: exact by definition, and at the reference's cost. What it takes is a second
session, in which ONNX Runtime keeps packed weights of its own.
"""

from __future__ import annotations

from typing import Any

from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.manifest import Interface
from qbpass.runtime.placed_session import open_placed
from qbpass.runtime.shared_cache import SharedCache


class RowCalls:
    """session: of the frozen graph, every layer of which appends in place. Others may use it, too."""

    def __init__(self, session: Any, interface: Interface):
        self.session = session
        self._names = [
            names
            for layer in interface.layers
            for names in ((layer.past_key, layer.present_key), (layer.past_value, layer.present_value))
        ]

    def binding(self, cache: SharedCache) -> Any:
        """A binding of the session with the buffers in it, as past and as present."""
        binding = self.session.io_binding()
        cache.bind_as(binding, self._names)
        return binding


def open_row_calls(bundle: Bundle, spec: SessionSpec) -> RowCalls:
    """A session of the bundle's reference for them. It must append in place (Bundle.appends_in_place)."""
    reference = bundle.reference
    return RowCalls(open_placed(reference.path, spec, weights=reference.weights), bundle.manifest.interface)
