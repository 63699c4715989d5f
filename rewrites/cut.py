"""One site cut out of a rewritten decoder, with the very nodes the decoder will run: what a falsifier runs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from qbpass.admission.site import AttentionSite
from qbpass.models.decoder import Decoder
from qbpass.rewrites.apply import Emission, rewrite_graph
from qbpass.rewrites.kv_cache import cache_name, numpy_dtype, segment_name, updated_name
from qbpass.rewrites.plan import RewritePlan
from qbpass.rewrites.site_graph import plan_alone, site_alone


def cut_site(frozen: Decoder, plan: RewritePlan, site: AttentionSite, emission: Emission) -> onnx.ModelProto:
    """A model of `site` alone, straight-line in the emission's layout.

    Inputs: token ids (1, q) for the number of rows, the site's queries (1, H, q, d) and mask (1, 1, q, n), its written
    cache `cache_out.N.key|value` (n, Hkv, d), value segments, and `cache.N.key`, whose length is the call's extent.
    Output: the site's output (1, H, q, dv).
    """
    plan = plan_alone(plan, site)
    graph = gs.import_onnx(rewrite_graph(site_alone(frozen, site), plan, emission))
    tensors = graph.tensors()
    names = [frozen.contract.input_ids, site.q, cache_name(site.layer, "key")]
    names += [updated_name(site.layer, part) for part in ("key", "value")]
    names += [segment_name(site.layer, s, part) for s in range(plan.segments - 1) for part in ("key", "value")]
    if site.mask is not None:
        names.append(site.mask)
    graph.inputs = []
    for name in names:
        tensor = tensors.get(name)
        if tensor is not None:
            tensor.inputs.clear()
            graph.inputs.append(tensor)
    for operand in (site.q, site.mask):
        if operand is not None:
            tensors[operand].dtype = numpy_dtype(site.type_of(operand))
            tensors[operand].shape = None
    output = tensors[site.output]
    output.dtype, output.shape = numpy_dtype(site.value_type), None
    graph.outputs = [output]
    graph.cleanup().toposort()
    model: onnx.ModelProto = gs.export_onnx(graph, do_type_check=False)
    return model


def causal_mask(past: int, queries: int, dtype: np.dtype) -> np.ndarray:
    """(1, 1, q, n) additive: 0 where the row may look, the type's lowest value elsewhere."""
    extent = past + queries
    allowed = np.arange(extent)[None] <= np.arange(past, extent)[:, None]
    return np.where(allowed, 0, np.finfo(dtype).min).astype(dtype)[None, None]
