"""Audits of a plan's addresses, one for each distinct kind of site: while the plan is made, and of what is written.

Source of the obligation: every (query, head) pair reads exactly the Q, K, V and mask values it read before, and output
rows return in query order, heads in head order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping

import onnx

from qbpass.admission.calls.call import Call
from qbpass.admission.site import AttentionSite
from qbpass.admission.strides.exported_audit import ExportedGraph
from qbpass.models.decoder import Decoder
from qbpass.rewrites.address_audit import PlanAuditor, SiteAudit, audit_site
from qbpass.rewrites.apply import Emission
from qbpass.rewrites.plan import RewritePlan

#: Sizes that a form is looked at before a falsifier tries it on numbers.
FIRST_CALLS = (Call(1, 5), Call(3, 4))


def audit_plan(
    frozen: Decoder, plan: RewritePlan, exported: ExportedGraph, calls: Iterable[Call] | None = None
) -> dict[str, SiteAudit]:
    """Each site's audit by the site's name, each kind of site in a decoder reduced to it."""
    chosen = None if calls is None else tuple(call for call in calls if call.queries <= plan.max_queries)
    return _by_kind(plan, exported, lambda site: audit_site(frozen, plan, site, chosen, exported))


def audit_written(
    plan: RewritePlan, models: Mapping[Emission, onnx.ModelProto], exported: ExportedGraph
) -> dict[str, SiteAudit]:
    """The same for the graphs that will be run, whole decoders: guarded, or active and native."""
    auditor = PlanAuditor(plan, models, exported)
    return _by_kind(plan, exported, lambda site: auditor.audit(site))


def _by_kind(
    plan: RewritePlan, exported: ExportedGraph, audit: Callable[[AttentionSite], SiteAudit]
) -> dict[str, SiteAudit]:
    done: dict[Hashable, SiteAudit] = {}
    found = {}
    for entry in plan.sites:
        kind = (entry.form, exported.kind(entry.site))
        if kind not in done:
            done[kind] = audit(entry.site)
        found[entry.site.name] = done[kind]
    return found
