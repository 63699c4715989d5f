"""Reading a .gguf file once: transformers reads it anew for the config, the tokenizer and the weights."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from qbpass.models.export.requirements import require


@contextmanager
def read_once() -> Iterator[None]:
    """Inside the block, transformers' readings of one .gguf file share their work. Nothing else about loading changes.

    transformers takes both names from the gguf module each time it loads, so a memo there is all it takes.
    """
    gguf, numpy = require("gguf"), require("numpy")
    kept = gguf.GGUFReader, gguf.get_tensor_name_map

    class PlainReader(gguf.GGUFReader):  # type: ignore[misc, name-defined]
        def _build_fields(self, offs: int, count: int) -> Any:
            # Hundreds of thousands of slices are taken, and a memory map's cost several times a plain view's.
            self.data = self.data.view(numpy.ndarray)  # type: ignore[has-type]
            return super()._build_fields(offs, count)

    gguf.GGUFReader = functools.cache(PlainReader)
    gguf.get_tensor_name_map = functools.cache(gguf.get_tensor_name_map)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = kept
