"""The one-row graph of a decoder over a bundle's caches: what a draft is quantized from."""

from __future__ import annotations

import onnx
import onnx_graphsurgeon as gs

from qbpass.admission.admit import admit
from qbpass.models.decoder import Decoder
from qbpass.rewrites.apply import rewrite_graph
from qbpass.rewrites.chains.plan import ChainPlan
from qbpass.rewrites.phases import Phase
from qbpass.rewrites.plan import RewritePlan, SiteForm, SitePlan
from qbpass.rewrites.self_draft.lean import make_lean


def one_row_graph(frozen: Decoder, chained: frozenset[int]) -> onnx.ModelProto:
    """Its inputs and outputs are those of the bundle's graph, but for value segments, phase and head rows: caches as
    the bundle's target holds them, one link for a layer in `chained`.
    """
    entries = admit(frozen).sites
    chains = tuple(ChainPlan(e.chain) for e in entries if e.chain is not None and e.chain.layer in chained)
    read = [e.site or e.lowered for e in entries]
    sites = tuple(SitePlan(s, SiteForm()) for s in read if s is not None and s.layer not in chained)
    plan = RewritePlan("qb", int(Phase.DRAFT_CONTINUATION), 1, sites, chains=chains)
    graph = gs.import_onnx(rewrite_graph(frozen, plan, "one_row"))
    widths: dict[str, int] = {}
    for site in (entry.site for entry in sites):
        widths |= {name: site.head_dim for name in (site.q, site.new_key) if name}
        widths |= {name: site.value_dim for name in (site.new_value, site.output) if name}
    make_lean(graph, widths)
    model: onnx.ModelProto = gs.export_onnx(graph, do_type_check=False)
    model.ir_version = max(frozen.model.ir_version, 10)
    return model
