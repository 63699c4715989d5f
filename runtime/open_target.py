"""The target that runs a bundle."""

from __future__ import annotations

from typing import Any

from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.gs_target import GSTarget
from qbpass.runtime.row_calls import RowCalls, open_row_calls

#: What runs a bundle: a target with a phase guard, whose session may be shared in another role.
BundleTarget = BlockTarget | GSTarget


def open_target(bundle: Bundle, spec: SessionSpec, *, lean: bool = False, reference: Any = None) -> BundleTarget:
    """By the bundle's layout. Raises BundleError where its graph is not the manifest's, else as open_session does.

    lean: no sessions for rows alone (row_calls.py) and for each number of rows: less memory, and slower.
    reference: a session of the bundle's frozen graph that is there already, and is used for them.
    """
    if bundle.manifest.layout == "gs":
        return GSTarget.from_bundle(bundle, spec)
    rows = None
    if bundle.appends_in_place and not lean:
        rows = open_row_calls(bundle, spec) if reference is None else RowCalls(reference, bundle.manifest.interface)
    return BlockTarget.from_bundle(bundle, spec, rows, lean=lean)
