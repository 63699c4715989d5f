"""A transformers model seen as a function of tensors: the past goes in and the present comes out."""

from __future__ import annotations

import inspect
from typing import Any

from qbpass.models.export.cache_tensors import KEPT_AS, CacheTensor, cache_parameter
from qbpass.models.export.names import PAST_DIM, QUERY_DIM
from qbpass.models.export.requirements import require

# Lengths the graph is traced at: different, and unlike a model's widths, so that no two sizes are taken for one.
TRACED_PAST, TRACED_QUERY = 7, 3
WRAPPED = "model"  # the prefix of every weight's name in the graph


def with_explicit_cache(model: Any, kept: tuple[CacheTensor, ...]) -> Any:
    """A module: ([input_ids, attention_mask, position_ids], [a past for each of `kept`]) -> (logits, [presents])."""
    torch = require("torch")
    cache_name, names = cache_parameter(model), token_inputs(model)

    class WithExplicitCache(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.add_module(WRAPPED, model)
            self.eval()

        def forward(self, tokens: Any, past: Any) -> Any:
            cache = _filled_cache(kept, past)
            output = model(**dict(zip(names, tokens, strict=True)), **{cache_name: cache}, use_cache=True)
            return output.logits, [_read(cache.layers[tensor.layer], tensor.part) for tensor in kept]

    return WithExplicitCache()


def token_inputs(model: Any) -> list[str]:
    """The token inputs `model` takes: ALiBi and pure recurrences need no positions."""
    takes = inspect.signature(model.forward).parameters
    return [name for name in ("input_ids", "attention_mask", "position_ids") if name in takes]


def traced_inputs(model: Any, kept: tuple[CacheTensor, ...]) -> tuple[Any, ...]:
    """Examples to trace with: token tensors (1, q), (1, past + q) and (1, q); a past for each of `kept`, in the
    model's own element type."""
    torch = require("torch")
    examples = {
        "input_ids": torch.zeros(1, TRACED_QUERY, dtype=torch.long),
        "attention_mask": torch.ones(1, TRACED_PAST + TRACED_QUERY, dtype=torch.long),
        "position_ids": torch.arange(TRACED_PAST, TRACED_PAST + TRACED_QUERY)[None],
    }
    past = [
        torch.zeros([TRACED_PAST if dim is None else dim for dim in tensor.shape], dtype=model.dtype) for tensor in kept
    ]
    return [examples[name] for name in token_inputs(model)], past


def dynamic_shapes(model: Any, kept: tuple[CacheTensor, ...]) -> tuple[Any, ...]:
    """Which sizes of traced_inputs may change. All layers share one past length, so that all are alike.

    min=1: with it torch knows that a bias of one row is broadcast (MPT). The graph asks for no such thing: its past may
    be empty.
    """
    dim = require("torch").export.Dim
    query, past = dim(QUERY_DIM, min=1), dim(PAST_DIM, min=1)
    tokens = {"input_ids": {1: query}, "attention_mask": {1: dim.DYNAMIC}, "position_ids": {1: query}}
    pasts = [{axis: past for axis, size in enumerate(tensor.shape) if size is None} for tensor in kept]
    return [tokens[name] for name in token_inputs(model)], pasts


def _filled_cache(kept: tuple[CacheTensor, ...], past: list[Any]) -> Any:
    """transformers' cache, holding `past`."""
    cache_utils = require("transformers.cache_utils")
    cache = cache_utils.DynamicCache()
    kinds = {tensor.layer: KEPT_AS[tensor.kind] for tensor in kept}
    empty = "DynamicLayer"  # of a layer that keeps nothing of its own: it reads another layer's
    cache.layers = [getattr(cache_utils, kinds.get(layer, empty))() for layer in range(max(kinds) + 1)]
    held = {(tensor.layer, tensor.part): value for tensor, value in zip(kept, past, strict=True)}
    for (number, part), value in held.items():
        layer = cache.layers[number]
        if part == "key":
            cache_utils.DynamicLayer.update(layer, value, held[number, "value"])
        elif part != "value":
            _set_state(layer, part, value.clone())  # a clone: layers write their states in place
    return cache


def _set_state(layer: Any, part: str, value: Any) -> None:
    getattr(layer, f"{part}s")[0] = value
    getattr(layer, f"is_{part}s_initialized")[0] = True
    layer.has_previous_state[0] = True
    layer.dtype, layer.device = value.dtype, value.device
    if part == "conv_state":
        layer.conv_kernel_size[0] = value.shape[-1]


def _read(layer: Any, part: str) -> Any:
    kept = getattr(layer, f"{part}s")
    return kept[0] if isinstance(kept, dict) else kept
