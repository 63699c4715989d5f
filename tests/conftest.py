"""Exports that the tests share: made once a machine, and kept in qbpass's cache folder.

No folder beside this file may be called qbpass: pytest puts this folder on sys.path, where such a folder would be found
as the package `qbpass` before an editable install is asked. The tests of qbpass/evidence lie in tests/evidence.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from qbpass.models.export import cached_export
from qbpass.models.loading import load_decoder
from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.bundle_writer import write_bundle


@pytest.fixture(scope="session")
def tiny_eager() -> Path:
    """The folder of the tiny model's export with eager attention, opset 18. Never written to."""
    return cached_export("builtin:tiny", "eager")


@pytest.fixture(scope="session")
def tiny_sdpa() -> Path:
    """The folder of the tiny model's export with torch's decomposed sdpa, opset 20. Never written to."""
    return cached_export("builtin:tiny", "sdpa")


@pytest.fixture(scope="session")
def smollm2_eager() -> Path:
    """The folder of SmolLM2-135M-Instruct's export with eager attention. For tests marked real_model."""
    return cached_export("builtin:smollm2-135m", "eager")


@pytest.fixture(scope="session")
def smollm2_sdpa() -> Path:
    """The folder of SmolLM2-135M-Instruct's export with torch's decomposed sdpa. For tests marked real_model."""
    return cached_export("builtin:smollm2-135m", "sdpa")


@pytest.fixture(scope="session")
def tiny_bundle(tiny_eager: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """QB over the tiny eager export, guarded, for two threads. Never written to."""
    return _bundle(tiny_eager, tmp_path_factory.mktemp("bundles") / "tiny_eager")


@pytest.fixture(scope="session")
def tiny_sdpa_bundle(tiny_sdpa: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """QB over the tiny sdpa export, guarded, for two threads. Never written to."""
    return _bundle(tiny_sdpa, tmp_path_factory.mktemp("bundles") / "tiny_sdpa")


def _bundle(export: Path, folder: Path) -> Bundle:
    return write_bundle(load_decoder(export), folder, "qb", SessionSpec(threads=2))[0]
