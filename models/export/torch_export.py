"""A torch decoder becomes model.onnx and model.onnx.data, through torch's dynamo exporter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from qbpass.models.errors import ExportError
from qbpass.models.export.cache_tensors import cache_tensors
from qbpass.models.export.experts import traceable_experts
from qbpass.models.export.explicit_cache import (
    WRAPPED,
    dynamic_shapes,
    token_inputs,
    traced_inputs,
    with_explicit_cache,
)
from qbpass.models.export.layers import LayerStack, shortened, uniform_stack
from qbpass.models.export.names import DATA_FILE, MODEL_FILE, QUERY_DIM, past_name, present_name
from qbpass.models.export.requirements import quiet, require
from qbpass.models.session import one_line


def write_onnx(model: Any, opset: int, folder: Path, *, repeat_layers: bool = True) -> None:
    """Write `model` (a transformers causal language model) into `folder`, at `opset`.

    The graph takes input_ids (1, q), attention_mask (1, past + q) and position_ids (1, q), as far as the model reads
    them, and the past of names.py; it gives logits (1, q, vocabulary) and the present. For a batch of one and any query
    and past length (past 0 included).
    repeat_layers: trace a few layers and repeat the last where all are alike; the graph is the same (stack.py), but for
    what a whole trace computes from weights alone and stores.
    Raises ExportError where torch can't trace the model.
    """
    require("onnxscript")
    dims, passes = require("qbpass.models.export.dims"), require("onnx_ir.passes.common")
    stack = uniform_stack(model) if repeat_layers else None
    program = _trace_stack(model, opset, stack) if stack is not None else None
    if program is None:
        program = _trace(model, opset)
        _simplify(program.model, weights_prefix=None)
    _drop_unread_inputs(program.model.graph)
    dims.name_dims(program.model.graph)
    passes.ClearMetadataAndDocStringPass()(program.model)  # stack traces: a third of the file, and this machine's paths
    program.save(folder / MODEL_FILE, external_data=True)
    if not (folder / DATA_FILE).is_file():
        raise ExportError(f"torch's exporter wrote no {DATA_FILE}: use the versions in constraints.txt")


def _trace_stack(model: Any, opset: int, stack: LayerStack) -> Any | None:
    """The model traced with a few layers and given all of them, or None where the graph shows they differ."""
    repeat = require("qbpass.models.export.stack")
    prefix = f"{WRAPPED}.{stack.path}"
    with shortened(model, stack):
        program = _trace(model, opset)
    _simplify(program.model, weights_prefix=f"{prefix}.")
    weights = {f"{WRAPPED}.{name}": tensor for name, tensor in model.state_dict().items()}
    try:
        repeat.repeat_last_layer(program.model, prefix, len(stack.layers), weights)
    except repeat.NotUniform:
        return None
    return program


def _trace(model: Any, opset: int) -> Any:
    torch = require("torch")
    kept = cache_tensors(model)
    with torch.no_grad(), quiet(), traceable_experts(model):
        try:
            return torch.onnx.export(
                with_explicit_cache(model, kept),
                traced_inputs(model, kept),
                dynamo=True,
                dynamic_shapes=dynamic_shapes(model, kept),
                input_names=[*token_inputs(model), *map(past_name, kept)],
                output_names=["logits", *map(present_name, kept)],
                opset_version=opset,
                optimize=False,
                verbose=False,
            )
        except Exception as error:  # of torch's exporter and of the model's own code: no common base
            raise ExportError(f"torch could not export {type(model).__name__}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """What stopped torch's exporter: its own error says in which of its steps, the one below it says why."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = one_line(error)
    if QUERY_DIM in text and re.search("Constraints violated|Specializations unexpectedly required", text):
        return "its layers run another computation for each number of tokens in a call (a loop over them, for one)"
    return text


def _drop_unread_inputs(graph: Any) -> None:
    """A model may take positions and not look at them (ALiBi): an input that nothing reads is none of the graph's."""
    for value in list(graph.inputs):
        if not value.uses() and not value.is_graph_output():
            graph.inputs.remove(value)


def _simplify(model: Any, weights_prefix: str | None) -> None:
    """What torch's `optimize=True` does, but that no weight under `weights_prefix` is folded into an unnamed one."""
    optimizer = require("onnxscript.optimizer")

    def should_fold(node: Any) -> bool | None:
        weights = [value for value in node.inputs if value is not None and value.is_initializer()]
        return False if weights_prefix and any(value.name.startswith(weights_prefix) for value in weights) else None

    optimizer.optimize_ir(model, should_fold=should_fold)
