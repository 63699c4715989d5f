"""A torch decoder becomes model.onnx and model.onnx.data, through torch's dynamo exporter."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

from qbpass.models.errors import ExportError
from qbpass.models.export.names import DATA_FILE, MODEL_FILE, input_names, output_names
from qbpass.models.export.requirements import require

# Lengths the graph is traced at. Different from each other and from every width of a model, so that no two are taken for one.
TRACED_PAST, TRACED_QUERY = 7, 3


def write_onnx(model: Any, opset: int, folder: Path) -> None:
    """Write `model` (a transformers causal language model) into `folder`, at `opset`.

    The graph takes and gives what names.py says, for a batch of one and any query and past length (past 0 included).
    Raises ExportError where torch can't trace the model.
    """
    torch = require("torch")
    require("onnxscript")
    layers = model.config.num_hidden_layers
    with torch.no_grad(), _quiet():
        try:
            program = torch.onnx.export(
                _with_explicit_cache(model),
                _traced_inputs(model.config),
                dynamo=True,
                dynamic_shapes=_dynamic_shapes(layers),
                input_names=input_names(layers),
                output_names=output_names(layers),
                opset_version=opset,
                optimize=True,
                external_data=True,
                verbose=False,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            first = str(error).strip().splitlines()[0]
            raise ExportError(f"torch could not export {type(model).__name__}: {first}") from error
    program.save(folder / MODEL_FILE, external_data=True)
    if not (folder / DATA_FILE).is_file():
        raise ExportError(f"torch {torch.__version__} wrote no {DATA_FILE}: use the versions in constraints.txt")


def _with_explicit_cache(model: Any) -> Any:
    """A module over `model` that takes the past as tensors and gives the present as tensors."""
    torch = require("torch")
    cache_utils = require("transformers.cache_utils")

    class WithExplicitCache(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.eval()

        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past: Any) -> Any:
            cache = cache_utils.DynamicCache()
            for layer, (key, value) in enumerate(past):
                cache.update(key, value, layer)
            output = self.model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=cache,
                use_cache=True,
            )
            return output.logits, [(layer.keys, layer.values) for layer in output.past_key_values.layers]

    return WithExplicitCache()


def _traced_inputs(config: Any) -> tuple[Any, ...]:
    torch = require("torch")
    heads = config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    past = [
        tuple(torch.zeros(1, heads, TRACED_PAST, head_dim) for _part in ("key", "value"))
        for _layer in range(config.num_hidden_layers)
    ]
    query = torch.zeros(1, TRACED_QUERY, dtype=torch.long)
    mask = torch.ones(1, TRACED_PAST + TRACED_QUERY, dtype=torch.long)
    positions = torch.arange(TRACED_PAST, TRACED_PAST + TRACED_QUERY)[None]
    return query, mask, positions, past


def _dynamic_shapes(layers: int) -> tuple[Any, ...]:
    dynamic = require("torch").export.Dim.DYNAMIC
    pair = ({2: dynamic}, {2: dynamic})
    return {1: dynamic}, {1: dynamic}, {1: dynamic}, [pair] * layers


class _quiet:
    """Keeps the exporter's advice to its developers off the user's terminal."""

    def __enter__(self) -> None:
        self._caught = warnings.catch_warnings()
        self._caught.__enter__()
        warnings.simplefilter("ignore")
        self._level = logging.getLogger("torch.onnx").level
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)

    def __exit__(self, *exception: object) -> None:
        logging.getLogger("torch.onnx").setLevel(self._level)
        self._caught.__exit__(*exception)
