"""Chains for the fused sites of an admission report, one trial for each distinct kind of site."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from qbpass.admission.fused_site import FusedSite
from qbpass.models.decoder import Decoder
from qbpass.models.session import SessionSpec
from qbpass.rewrites.chains.alone import fused_node
from qbpass.rewrites.chains.falsify import falsify_chain
from qbpass.rewrites.chains.plan import ChainPlan


def plan_chains(
    frozen: Decoder,
    sites: Iterable[FusedSite],
    max_queries: int,
    spec: SessionSpec,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[ChainPlan, ...]:
    """Every site with its evidence, false or unknown: the caller refuses a false one."""
    tried: dict[Any, dict[str, Any]] = {}
    plans = []
    for site in sites:
        kind = chain_kind(frozen, site)
        if kind not in tried:
            progress(f"trying {site.name} query by query (heads {site.heads}/{site.kv_heads}, d {site.head_dim})")
            tried[kind] = falsify_chain(frozen, site, max_queries, spec)
        plans.append(ChainPlan(site, tried[kind]))
    return tuple(plans)


def chain_kind(frozen: Decoder, site: FusedSite) -> tuple[Any, ...]:
    """Sites of one kind run the same kernel on operands of the same shapes."""
    node = fused_node(frozen.model, site)
    attributes = tuple(sorted((entry.name, entry.SerializeToString()) for entry in node.attribute))
    there = tuple(bool(name) for name in node.input)
    return (site.heads, site.kv_heads, site.head_dim, site.value_dim, site.elem_type, attributes, there)
