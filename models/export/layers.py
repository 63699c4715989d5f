"""A model's stack of decoder layers: found, compared, and shortened while the model is traced.

Tracing costs seconds a layer. Where all layers are alike, three of them are traced and stack.py repeats the third.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from qbpass.models.export.requirements import require

TRACED_LAYERS = (
    3  # the first may hold what all share; the second and third show what changes from one layer to the next
)


@dataclass(frozen=True)
class LayerStack:
    """path: the dotted name of the torch ModuleList that holds the layers."""

    path: str
    layers: tuple[Any, ...]


def uniform_stack(model: Any) -> LayerStack | None:
    """The model's decoder layers, or None where there are too few to gain, or they are not all alike."""
    torch = require("torch")
    config = model.config.get_text_config(decoder=True)  # the model's own, but for one that sees images, too
    count = config.num_hidden_layers
    found = [
        LayerStack(path, tuple(module))
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == count
    ]
    if count <= TRACED_LAYERS or len(found) != 1 or len(set(getattr(config, "layer_types", None) or ())) > 1:
        return None
    first, *others = (_description(layer) for layer in found[0].layers)
    return found[0] if all(other == first for other in others) else None


@contextmanager
def shortened(model: Any, stack: LayerStack) -> Iterator[None]:
    """Inside the block, `model` has only the first TRACED_LAYERS layers."""
    parent_path, _, name = stack.path.rpartition(".")
    parent = model.get_submodule(parent_path)
    whole = getattr(parent, name)
    setattr(parent, name, whole[:TRACED_LAYERS])
    try:
        yield
    finally:
        setattr(parent, name, whole)


def _description(layer: Any) -> list[Any]:
    """What a layer is but for its weights' values: classes, plain settings, and tensors' names, shapes and types."""
    tensors = [*layer.named_parameters(), *layer.named_buffers()]
    return [
        [(path, type(module), _plain_settings(module)) for path, module in layer.named_modules()],
        [(name, tensor.shape, tensor.dtype) for name, tensor in tensors],
    ]


def _plain_settings(module: Any) -> dict[str, Any]:
    plain = (bool, int, float, str, type(None))
    return {key: value for key, value in vars(module).items() if isinstance(value, plain) and key != "layer_idx"}
