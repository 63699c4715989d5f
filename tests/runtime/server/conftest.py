"""What the server's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from served_model import byte_codec

from qbpass.models.tokenizer import TextCodec


@pytest.fixture(scope="session")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    """Bytes as tokens, with a chat template."""
    return byte_codec(tmp_path_factory.mktemp("codec"))


@pytest.fixture
def plain_codec(tmp_path: Path) -> TextCodec:
    """The same without a chat template."""
    return byte_codec(tmp_path, None)
