"""What a layout needs to know of one site while it emits it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import onnx_graphsurgeon as gs

from qbpass.admission.site import AttentionSite
from qbpass.rewrites.call_dims import CallDims
from qbpass.rewrites.plan import SiteForm


@dataclass
class SiteContext:
    """Tensors of one site in the graph being rewritten.

    q_1HqD: queries; key_nHD, value_nHD: the written cache; value_prefixes: the shorter segments (n_s, Hkv, dv) of the
    value cache, the same memory; key_prefixes: the same of the key cache, where the form clips keys; mask: additive,
    broadcastable to (1, 1, q, n), or None; row_mask: the same as (1, 1, q, 1, n); original: the site's own nodes by
    output name; outer: the graph's own tensors by name.
    """

    site: AttentionSite
    form: SiteForm
    dims: CallDims
    q_1HqD: Any
    key_nHD: Any
    value_nHD: Any
    key_prefixes: list[Any]
    value_prefixes: list[Any]
    mask: Any
    row_mask: Any
    original: dict[str, gs.Node]
    max_queries: int
    outer: dict[str, Any] = field(default_factory=dict)

    def nodes(self, names: tuple[str, ...]) -> list[gs.Node]:
        return [self.original[name] for name in names]

    @property
    def qk(self) -> gs.Node:
        return self.original[self.site.nodes.qk]

    @property
    def softmax(self) -> gs.Node:
        return self.original[self.site.nodes.softmax]

    @property
    def av(self) -> gs.Node:
        return self.original[self.site.nodes.av]
