"""The target that runs a bundle."""

from __future__ import annotations

from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.gs_target import GSTarget

#: What runs a bundle: a target with a phase guard, whose session may be shared in another role.
BundleTarget = BlockTarget | GSTarget


def open_target(bundle: Bundle, spec: SessionSpec) -> BundleTarget:
    """By the bundle's layout. Raises BundleError where its graph is not the manifest's, else as open_session does."""
    kind = GSTarget if bundle.manifest.layout == "gs" else BlockTarget
    return kind.from_bundle(bundle, spec)
