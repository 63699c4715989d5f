"""Exports that the tests share: made once a machine, and kept in qbpass's cache folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from qbpass.models.export import cached_export


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
