"""The exported graph of a site, cut out for one call with Q, mask, past and new rows as its inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qbpass.admission.calls.call import Call
from qbpass.admission.site import AttentionSite
from qbpass.admission.strides.call_audit import Subject
from qbpass.admission.strides.cut_graph import GraphCutter, SizeOf
from qbpass.admission.strides.elements import Ids, UntracedError
from qbpass.admission.strides.operands import Memory
from qbpass.admission.strides.required import KEY, MASK, QUERY, VALUE, required_reads
from qbpass.models.interface import Interface


def query_numbers(site: AttentionSite, call: Call) -> Ids:
    """(1, H, q, d)."""
    return np.arange(site.heads * call.queries * site.head_dim, dtype=np.int64).reshape(
        1, site.heads, call.queries, site.head_dim
    )


def row_numbers(site: AttentionSite, extent: int, width: int) -> Ids:
    """(n, Hkv, width): keys or values in the order of positions, which is how required.py numbers them."""
    return np.arange(extent * site.kv_heads * width, dtype=np.int64).reshape(extent, site.kv_heads, width)


def exported_subject(
    cutter: GraphCutter, site: AttentionSite, call: Call, mask_shape: Sequence[int] | None, size_of: SizeOf
) -> Subject:
    """Raises UntracedError where the site's nodes depend on anything but its operands, sizes and constants."""
    leaves = exported_leaves(site, call, mask_shape)
    model = cutter.cut([site.output], leaves, size_of)
    ends = [call.extent] * call.queries
    return Subject(model, leaves, site.output, required_reads(site, call, mask_shape, ends))


def exported_leaves(site: AttentionSite, call: Call, mask_shape: Sequence[int] | None) -> dict[str, Memory]:
    """The site's operands as the export joins them: past (1, Hkv, past, d), new rows (1, Hkv, q, d), or turned."""
    leaves: dict[str, Memory] = {}

    def add(name: str | None, root: str, numbers: Ids) -> None:
        if name is not None:
            if name in leaves:
                raise UntracedError(f"reads {name!r} as two operands")
            leaves[name] = Memory.own(name, root, numbers)

    add(site.q, QUERY, query_numbers(site, call))
    if site.mask is not None and mask_shape is not None:
        add(site.mask, MASK, np.arange(np.prod(mask_shape, dtype=np.int64)).reshape(mask_shape))
    for root, whole, past, new, width in (
        (KEY, site.k, site.old_key or site.past_key, site.new_key, site.head_dim),
        (VALUE, site.v, site.old_value or site.past_value, site.new_value, site.value_dim),
    ):
        rows_1HnD = row_numbers(site, call.extent, width).transpose(1, 0, 2)[None]
        if past is None or new is None:
            raise UntracedError(f"makes {whole!r} of past and new rows in a way that is not known")
        axes = site.key_axes if root == KEY else site.value_axes
        add(past, root, rows_1HnD[:, :, : call.past].transpose(axes))
        add(new, root, rows_1HnD[:, :, call.past :].transpose(axes))
    return leaves


def interface_sizes(interface: Interface, call: Call) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs that the interface knows."""
    shapes: dict[str | None, tuple[int | None, ...]] = {
        interface.input_ids: (1, call.queries),
        interface.position_ids: (1, call.queries),
        interface.attention_mask: (1, call.extent),
    }
    for pair in interface.kv:
        shapes[pair.past_key] = (1, pair.kv_heads, call.past, pair.key_dim)
        shapes[pair.past_value] = (1, pair.kv_heads, call.past, pair.value_dim)
    return {name: tuple(int(s or 0) for s in shape) for name, shape in shapes.items() if name and None not in shape}
