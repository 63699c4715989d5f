"""Runs a cut-out site on random operands: rows one at a time as serial decoding would, or in a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qbpass.admission.site import AttentionSite
from qbpass.models.decoder import Decoder
from qbpass.models.errors import ModelFileError
from qbpass.models.session import SessionSpec, one_line, open_session
from qbpass.rewrites.apply import Emission
from qbpass.rewrites.cut import causal_mask, cut_site
from qbpass.rewrites.extents import segment_extents
from qbpass.rewrites.kv_cache import cache_name, numpy_dtype, segment_name, updated_name
from qbpass.rewrites.plan import RewritePlan


@dataclass(frozen=True)
class Operands:
    """q_1HrD: one query row for each position; key_nHD, value_nHD: a cache that reaches to the last position."""

    q_1HrD: np.ndarray
    key_nHD: np.ndarray
    value_nHD: np.ndarray


def random_operands(site: AttentionSite, extent: int, seed: int) -> Operands:
    """Normal operands for every position below `extent`."""
    rng = np.random.default_rng(seed)

    def normal(elem_type: int, *shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32).astype(numpy_dtype(elem_type))

    return Operands(
        normal(site.elem_type, 1, site.heads, extent, site.head_dim),
        normal(site.elem_type, extent, site.kv_heads, site.head_dim),
        normal(site.value_type, extent, site.kv_heads, site.value_dim),
    )


class FormNotRun(ModelFileError):
    """A form that ONNX Runtime can't load or run: it is no candidate, and says nothing of other forms."""


class SiteRunner:
    """One site in one layout on this machine."""

    def __init__(self, frozen: Decoder, plan: RewritePlan, site: AttentionSite, emission: Emission, spec: SessionSpec):
        model = cut_site(frozen, plan, site, emission)
        try:
            self.session = open_session(model.SerializeToString(), spec, weights=frozen.weights)
        except ModelFileError as error:
            if emission == "native":
                raise
            raise FormNotRun(f"{site.name} could not be loaded on {spec.provider}: {one_line(error)}") from error
        self.inputs = {entry.name for entry in self.session.get_inputs()}
        self.plan, self.site, self.token_ids = plan, site, frozen.contract.input_ids
        self.provider = spec.provider
        self.native = emission == "native"

    def block(self, operands: Operands, past: int, queries: int) -> np.ndarray:
        """(1, H, q, dv): rows past .. past + q - 1 evaluated in one call, each over its own key extent."""
        site, extent = self.site, past + queries
        feeds: dict[str, Any] = {
            self.token_ids: np.zeros((1, queries), np.int64),
            site.q: np.ascontiguousarray(operands.q_1HrD[:, :, past:extent]),
            cache_name(site.layer, "key"): operands.key_nHD[:extent],
            updated_name(site.layer, "key"): operands.key_nHD[:extent],
            updated_name(site.layer, "value"): operands.value_nHD[:extent],
        }
        if site.mask is not None:
            feeds[site.mask] = causal_mask(past, queries, numpy_dtype(site.type_of(site.mask)))
        ends = [extent] if self.native else segment_extents(past, queries, self.plan.extents, self.plan.segments)
        for index, end in enumerate(ends[:-1]):
            feeds[segment_name(site.layer, index)] = operands.value_nHD[:end]
            feeds[segment_name(site.layer, index, "key")] = operands.key_nHD[:end]
        try:
            output: np.ndarray = self.session.run(None, {k: v for k, v in feeds.items() if k in self.inputs})[0]
        except Exception as error:  # ONNX Runtime raises a family of private types
            kind = ModelFileError if self.native else FormNotRun
            raise kind(f"{site.name} could not be run on {self.provider}: {one_line(error)}") from error
        return output
