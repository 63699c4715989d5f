"""What a model keeps from one call to the next, layer by layer, found by running it once on a few tokens.

A config does not say it: latent attention keeps keys and values of different widths, multi-query attention one head,
and hybrids keep states of convolutions and recurrences in some layers or beside the keys.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from qbpass.models.errors import ExportError
from qbpass.models.export.requirements import quiet, require
from qbpass.models.session import one_line

TRIED_TOKENS = 3
STATES = ("conv_state", "recurrent_state")  # parts whose size does not depend on the past
# transformers' cache layers -> the one that keeps the same without dropping what a sliding window has passed: the mask
# hides it, so every layer has one past length.
KEPT_AS = {
    "DynamicLayer": "DynamicLayer",
    "DynamicSlidingWindowLayer": "DynamicLayer",
    "LinearAttentionLayer": "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer": "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer": "LinearAttentionAndFullAttentionLayer",
}


@dataclass(frozen=True)
class CacheTensor:
    """One tensor of a layer's cache.

    part: key | value (1, kv_heads, past, dim), conv_state | recurrent_state (of a fixed shape); shape: of a batch of
    one, None where it is the past's length; kind: the name of transformers' cache layer.
    """

    layer: int
    part: str
    shape: tuple[int | None, ...]
    kind: str

    @property
    def grows(self) -> bool:
        return None in self.shape


def cache_tensors(model: Any) -> tuple[CacheTensor, ...]:
    """The tensors `model` leaves in its cache, in layer order.

    Raises ExportError where the model keeps nothing, or something of another kind.
    """
    torch, cache_utils = require("torch"), require("transformers.cache_utils")
    cache = cache_utils.DynamicCache(config=model.config)
    tokens = torch.ones(1, TRIED_TOKENS, dtype=torch.long)
    try:
        with torch.no_grad(), quiet():
            model(input_ids=tokens, **{cache_parameter(model): cache}, use_cache=True)
    except Exception as error:  # of the model's own code: no common base
        raise ExportError(f"{type(model).__name__} can't be run on a few tokens alone: {one_line(error)}") from error
    found = [tensor for number, layer in enumerate(cache.layers) for tensor in _of_layer(model, number, layer)]
    if not found:
        raise ExportError(f"{type(model).__name__} leaves nothing in its cache: it is no decoder")
    return tuple(found)


def cache_parameter(model: Any) -> str:
    """What `model` calls its cache. Raises ExportError where it takes none that qbpass knows."""
    takes = inspect.signature(model.forward).parameters
    name = next((name for name in ("cache", "past_key_values") if name in takes), None)
    if name is None:
        raise ExportError(f"{type(model).__name__} takes no cache of keys and values: it is no decoder")
    return name


def _of_layer(model: Any, number: int, layer: Any) -> list[CacheTensor]:
    kind = type(layer).__name__
    parts = [(part, getattr(layer, f"{part}s", None)) for part in ("key", "value")]
    found = [
        CacheTensor(number, part, (*tensor.shape[:2], None, *tensor.shape[3:]), kind)
        for part, tensor in parts
        if tensor is not None
    ]
    for part in STATES:
        states = [state for state in (getattr(layer, f"{part}s", None) or {}).values() if state is not None]
        found += [CacheTensor(number, part, tuple(state.shape), kind) for state in states]
        if len(states) > 1:
            raise ExportError(f"{type(model).__name__} keeps {len(states)} {part}s a layer: qbpass exports one")
    if found and kind not in KEPT_AS:
        raise ExportError(f"{type(model).__name__} keeps a cache of the kind {kind}, which qbpass can't export")
    return found
