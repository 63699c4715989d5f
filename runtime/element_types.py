"""Element types of what a session gives and takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from qbpass.models.errors import ContractError

_TYPES: dict[str, type[np.floating[Any]]] = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


def numpy_type(value: Any) -> np.dtype[Any]:
    """Of an OrtValue of floating-point numbers."""
    return np.dtype(_TYPES[value.data_type()])


def cache_dtypes(session: Any) -> dict[str, np.dtype[Any]]:
    """The numpy dtype of each cache and prefix of one that the session takes.

    A cache holds keys and values in the type that its products read, which need not be the type of the export's past.
    """
    return {entry.name: np.dtype(_TYPES[entry.type]) for entry in session.get_inputs() if entry.type in _TYPES}


def logits_dtype(session: Any, name: str) -> np.dtype[Any]:
    """The numpy dtype of output `name`. Raises ContractError for a type numpy has no array of."""
    kind = next(str(entry.type) for entry in session.get_outputs() if entry.name == name)
    if kind not in _TYPES:
        raise ContractError(f"the logits are {kind}: export the model with float32 or float16 logits")
    return np.dtype(_TYPES[kind])
