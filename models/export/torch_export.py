"""A torch decoder becomes model.onnx and model.onnx.data, through torch's dynamo exporter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qbpass.models.errors import ExportError
from qbpass.models.export.explicit_cache import WRAPPED, dynamic_shapes, traced_inputs, with_explicit_cache
from qbpass.models.export.layers import TRACED_LAYERS, LayerStack, shortened, uniform_stack
from qbpass.models.export.names import DATA_FILE, MODEL_FILE, input_names, output_names
from qbpass.models.export.requirements import quiet, require
from qbpass.models.session import one_line


def write_onnx(model: Any, opset: int, folder: Path, *, repeat_layers: bool = True) -> None:
    """Write `model` (a transformers causal language model) into `folder`, at `opset`.

    The graph takes and gives what names.py says, for a batch of one and any query and past length (past 0 included).
    repeat_layers: trace a few layers and repeat the last where all are alike; the graph is the same (stack.py).
    Raises ExportError where torch can't trace the model.
    """
    require("onnxscript")
    dims, passes = require("qbpass.models.export.dims"), require("onnx_ir.passes.common")
    stack = uniform_stack(model) if repeat_layers else None
    program = _trace_stack(model, opset, stack) if stack is not None else None
    if program is None:
        program = _trace(model, opset, model.config.num_hidden_layers)
        _simplify(program.model, weights_prefix=None)
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
        program = _trace(model, opset, TRACED_LAYERS)
    _simplify(program.model, weights_prefix=f"{prefix}.")
    weights = dict(with_explicit_cache(model).state_dict())
    try:
        repeat.repeat_last_layer(program.model, prefix, len(stack.layers), weights)
    except repeat.NotUniform:
        return None
    return program


def _trace(model: Any, opset: int, layers: int) -> Any:
    torch = require("torch")
    with torch.no_grad(), quiet():
        try:
            return torch.onnx.export(
                with_explicit_cache(model),
                traced_inputs(model.config, layers),
                dynamo=True,
                dynamic_shapes=dynamic_shapes(layers),
                input_names=input_names(layers),
                output_names=output_names(layers),
                opset_version=opset,
                optimize=False,
                verbose=False,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            raise ExportError(f"torch could not export {type(model).__name__}: {one_line(error)}") from error


def _simplify(model: Any, weights_prefix: str | None) -> None:
    """What torch's `optimize=True` does, but that no weight under `weights_prefix` is folded into an unnamed one."""
    optimizer = require("onnxscript.optimizer")

    def should_fold(node: Any) -> bool | None:
        weights = [value for value in node.inputs if value is not None and value.is_initializer()]
        return False if weights_prefix and any(value.name.startswith(weights_prefix) for value in weights) else None

    optimizer.optimize_ir(model, should_fold=should_fold)
