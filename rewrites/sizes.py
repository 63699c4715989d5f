"""Sizes that the rest of a graph asks of an attention's own tensors, once that attention is rewritten.

Past, present and inner tensors of the exported attention are gone then; what a Shape of them gave is computed from the
call's own lengths. Admission has worked out each size as a sum of queries, past and a constant (site.sizes).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from qbpass.admission.extents import PAST, QUERIES, Extent
from qbpass.admission.site import AttentionSite
from qbpass.models.errors import ContractError
from qbpass.rewrites.call_dims import CallDims


def replace_sizes(tensors: dict[str, Any], exported: Container[str], site: AttentionSite, dims: CallDims) -> None:
    """Every exported Shape of a tensor in `site.sizes` outside the site's own nodes becomes what it was.

    exported: the tensors that nodes of the export make, by name; what a rewrite adds asks for sizes, too.
    """
    own = set(site.nodes.all())
    for name, extents in site.sizes.items():
        readers = list(tensors[name].outputs) if name in tensors else []  # not in a graph reduced to another site
        for node in readers:
            made = node.outputs[0].name if node.outputs else None
            if node.op == "Shape" and made in exported and made not in own:
                _replace(node, [_size(extent, dims) for extent in extents], dims)


def _replace(node: Any, sizes: list[Any], dims: CallDims) -> None:
    chosen = sizes[node.attrs.get("start", 0) : node.attrs.get("end", len(sizes))]
    if not chosen:
        raise ContractError(f"{node.name} takes an empty slice of a shape: export the model again")
    replacement = chosen[0] if len(chosen) == 1 and not isinstance(chosen[0], int) else dims.shape(*chosen)
    for reader in list(node.outputs[0].outputs):
        for index, tensor in enumerate(reader.inputs):
            if tensor is node.outputs[0]:
                reader.inputs[index] = replacement
    node.inputs.clear()
    node.outputs.clear()


def _size(extent: Extent, dims: CallDims) -> Any:
    """An int, or a 1-element int64 tensor."""
    value = extent.value()
    if value is not None:
        return value
    return dims.sum({QUERIES: dims.q, PAST: dims.past}, extent.terms)
