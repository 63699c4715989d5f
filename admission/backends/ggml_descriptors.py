"""What query-to-batch attention asks of ggml: two products a site, in ggml's axis order (innermost first)."""

from __future__ import annotations

from qbpass.admission.backends.descriptor import Descriptor, Operand, type_name
from qbpass.admission.report import SiteReport

GGML = "ggml"


def query_to_batch_products(report: SiteReport, queries: int) -> tuple[Descriptor, ...]:
    """QK and AV of one attention at q queries, as mul_mat(src0, src1) reads them; nothing where its heads are unknown.

    QK: K (d, n, Hkv, 1) and Q (d, 1, H, q), a view of (d, q, H, 1) that keeps the query's stride as that of the fourth
    axis. AV: V transposed (n, dv, Hkv, 1) and the probabilities (n, 1, H, q). Source: Phase-Scoped Query Layouts,
    sections 3.1 and S6.3, for the non-flash attention of llama.cpp.
    """
    sizes = _sizes(report)
    if sizes is None:
        return ()
    heads, kv_heads, d, dv, kind = sizes
    row = d * heads  # elements from one query's rows to the next
    qk = (
        Operand(kind, (d, "n", kv_heads, 1), name="src0 (K)"),
        Operand(kind, (d, 1, heads, queries), (1, row, d, row), name="src1 (Q)"),
    )
    av = (
        Operand(kind, ("n", dv, kv_heads, 1), name="src0 (V)"),
        Operand(kind, ("n", 1, heads, queries), name="src1 (P)"),
    )
    scores, output = ("n", 1, heads, queries), (dv, 1, heads, queries)
    return (
        _product(report.name, queries, "QK", qk, Operand(kind, scores, name="dst")),
        _product(report.name, queries, "AV", av, Operand(kind, output, name="dst")),
    )


def _sizes(report: SiteReport) -> tuple[int, int, int, int, str | None] | None:
    """(heads, KV heads, d, dv, element type), of a site, or of an attention that a report knows all of them of."""
    site, facts = report.site, report.facts
    if site is not None:
        return site.heads, site.kv_heads, site.head_dim, site.value_dim, type_name(site.elem_type)
    if facts is None or not (facts.heads and facts.kv_heads and facts.head_dim and facts.value_dim):
        return None
    return facts.heads, facts.kv_heads, facts.head_dim, facts.value_dim, None


def _product(site: str, queries: int, role: str, sources: tuple[Operand, Operand], result: Operand) -> Descriptor:
    return Descriptor(
        operator="mul_mat",
        domain=GGML,
        inputs=sources,
        outputs=(result,),
        attributes=(("role", role),),
        site=site,
        part="qb",
        queries=queries,
        example=f"{site} {role}",
    )
