"""A transformers model seen as a function of tensors: the past goes in and the present comes out."""

from __future__ import annotations

from typing import Any

from qbpass.models.export.names import PAST_DIM, QUERY_DIM
from qbpass.models.export.requirements import require

# Lengths the graph is traced at: different, and unlike a model's widths, so that no two sizes are taken for one.
TRACED_PAST, TRACED_QUERY = 7, 3
WRAPPED = "model"  # the prefix of every weight's name in the graph


def with_explicit_cache(model: Any) -> Any:
    """A module: (input_ids, attention_mask, position_ids, [(key, value), ...]) -> (logits, [(key, value), ...])."""
    torch = require("torch")
    cache_utils = require("transformers.cache_utils")

    class WithExplicitCache(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.add_module(WRAPPED, model)
            self.eval()

        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past: Any) -> Any:
            cache = cache_utils.DynamicCache()
            for layer, (key, value) in enumerate(past):
                cache.update(key, value, layer)
            output = model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=cache,
                use_cache=True,
            )
            return output.logits, [(layer.keys, layer.values) for layer in output.past_key_values.layers]

    return WithExplicitCache()


def traced_inputs(config: Any, layers: int) -> tuple[Any, ...]:
    """Examples to trace with: token tensors (1, q) and (1, past + q), pasts (1, kv_heads, past, head_dim)."""
    torch = require("torch")
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    past = [
        tuple(torch.zeros(1, heads, TRACED_PAST, head_dim) for _part in ("key", "value")) for _layer in range(layers)
    ]
    query = torch.zeros(1, TRACED_QUERY, dtype=torch.long)
    mask = torch.ones(1, TRACED_PAST + TRACED_QUERY, dtype=torch.long)
    positions = torch.arange(TRACED_PAST, TRACED_PAST + TRACED_QUERY)[None]
    return query, mask, positions, past


def dynamic_shapes(layers: int) -> tuple[Any, ...]:
    """Which sizes of traced_inputs may change. All layers share one past length, so that all are alike."""
    dim = require("torch").export.Dim
    query, past = dim(QUERY_DIM), dim(PAST_DIM)
    return {1: query}, {1: dim.DYNAMIC}, {1: query}, [({2: past}, {2: past})] * layers
