"""torch's older exporter, as optimum and many scripts use it: the model is traced by torch.jit, then translated."""

from __future__ import annotations

import warnings
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from qbpass.models.export.cache_tensors import CacheTensor, cache_tensors
from qbpass.models.export.experts import traceable_experts
from qbpass.models.export.explicit_cache import token_inputs, traced_inputs, with_explicit_cache
from qbpass.models.export.names import past_name, present_name

OPSET = 18
AXES = {"input_ids": {1: "sequence_length"}, "attention_mask": {1: "total_sequence_length"}}
AXES["position_ids"] = AXES["logits"] = AXES["input_ids"]


def write_torchscript(model: Any, folder: Path) -> None:
    """model.onnx of a decoder, with the cache as explicit inputs and outputs."""
    kept = cache_tensors(model)
    names = [*token_inputs(model), *map(past_name, kept)]
    outputs = ["logits", *map(present_name, kept)]
    axes = {name: AXES[name] for name in (*token_inputs(model), "logits")}
    axes |= {name(tensor): _axes(tensor, label) for tensor in kept for name, label in _ENDS}
    export_traced(with_explicit_cache(model, kept), traced_inputs(model, kept), names, outputs, axes, folder, model)


def export_traced(
    module: Any, inputs: Any, names: list[str], outputs: list[str], axes: Any, folder: Path, model: Any
) -> None:
    """`module` through torch.onnx.export(dynamo=False), without its advice on the terminal."""
    with torch.no_grad(), traceable_experts(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            torch.onnx.export(
                module,
                inputs,
                str(folder / "model.onnx"),
                dynamo=False,
                opset_version=OPSET,
                input_names=names,
                output_names=outputs,
                dynamic_axes=axes,
            )


_ENDS = ((past_name, "past_sequence_length"), (present_name, "total_sequence_length"))


def _axes(tensor: CacheTensor, label: str) -> dict[int, str]:
    return {axis: label for axis, size in enumerate(tensor.shape) if size is None}
