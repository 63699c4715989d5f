"""What a decoder is called with: a call of any number of rows behind any number of cached ones, drawn from a seed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from onnx import helper

from qbpass.admission.calls.call import Call
from qbpass.admission.calls.call_inputs import TensorInCall, call_inputs
from qbpass.admission.probes.fills import Array, aligned
from qbpass.models.decoder import Decoder
from qbpass.models.errors import ModelFileError

MOST_ELEMENTS = (
    2**28
)  # of a call's inputs together; an 8-billion-parameter model's cache of 1,000 rows is a quarter of it

#: What is added to a call's past where a graph can't be run behind a short one (a window that must be full).
LONGER = (0, 64, 1200, 5000)


def longer(call: Call) -> Iterator[Call]:
    """The call, then the same behind longer pasts."""
    return (replace(call, past=call.past + rows) for rows in LONGER)


def decoder_feeds(decoder: Decoder, call: Call, seed: int = 0) -> dict[str, Array]:
    """Random tokens at their positions, a mask of ones, and caches of normal values.

    Raises ModelFileError where an input's shape is not known.
    """
    random = np.random.default_rng(seed)
    inputs, _ = call_inputs(decoder.model.graph, decoder.interface, call)
    known = _caches(decoder, call).items()
    inputs |= {name: entry for name, entry in known if name in inputs and len(inputs[name].shape or ()) == 4}
    _check_size(decoder, inputs)
    return {name: _value(decoder, name, entry, call, random) for name, entry in inputs.items()}


def _caches(decoder: Decoder, call: Call) -> dict[str, TensorInCall]:
    """KV pairs of (1, Hkv, past, width): their head counts and widths are known where the inputs name symbols."""
    found = {}
    for pair in decoder.interface.kv:
        for name, width in ((pair.past_key, pair.key_dim), (pair.past_value, pair.value_dim)):
            if name is not None and pair.past_key != pair.past_value and pair.kv_heads and width:
                found[name] = TensorInCall(pair.elem_type, (1, pair.kv_heads, call.past, width))
    return found


def _check_size(decoder: Decoder, inputs: dict[str, TensorInCall]) -> None:
    """A symbol that nothing explains gets a size of its own; several such in one shape make it vast."""
    elements = sum(math.prod(size or 0 for size in entry.shape or ()) for entry in inputs.values())
    if elements > MOST_ELEMENTS:
        raise ModelFileError(
            f"a call of {decoder.path} would take {elements:,} numbers: its inputs' shapes name lengths that nothing "
            "in the graph explains; export it again"
        )


def _value(decoder: Decoder, name: str, entry: TensorInCall, call: Call, random: np.random.Generator) -> Array:
    if entry.value is not None:
        return entry.value
    if entry.shape is None or None in entry.shape:
        raise ModelFileError(
            f"input {name!r} of {decoder.path} states no shape, so it can't be called: export it again"
        )
    shape = tuple(size for size in entry.shape if size is not None)
    dtype = helper.tensor_dtype_to_np_dtype(entry.elem_type)
    if name == decoder.interface.input_ids:
        return random.integers(0, min(decoder.interface.vocab_size or 1, 2**31), shape).astype(dtype)
    if dtype.kind == "f":
        return aligned(random.standard_normal(shape, dtype=np.float32).astype(dtype))
    # A flag that asks for the branch with a past, or a count of rows.
    return np.full(shape, True if dtype.kind == "b" else call.queries).astype(dtype)
