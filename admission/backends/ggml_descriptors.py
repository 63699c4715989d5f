"""What query-to-batch attention asks of ggml: two products a site, in ggml's axis order (innermost first)."""

from __future__ import annotations

from qbpass.admission.backends.descriptor import Descriptor, Operand, type_name
from qbpass.admission.site import AttentionSite

GGML = "ggml"


def query_to_batch_products(site: AttentionSite, queries: int) -> tuple[Descriptor, Descriptor]:
    """QK and AV of one site at q queries, as mul_mat(src0, src1) reads them.

    QK: K (d, n, Hkv, 1) and Q (d, 1, H, q), a view of (d, q, H, 1) that keeps the query's stride as that of the fourth
    axis. AV: V transposed (n, dv, Hkv, 1) and the probabilities (n, 1, H, q). Source: Phase-Scoped Query Layouts,
    sections 3.1 and S6.3, for the non-flash attention of llama.cpp.
    """
    kind, d, dv, heads, kv_heads = (
        type_name(site.elem_type),
        site.head_dim,
        site.value_dim,
        site.heads,
        site.kv_heads,
    )
    row = d * heads  # elements from one query's rows to the next
    qk = (
        Operand(kind, (d, "n", kv_heads, 1), None, name="src0 (K)"),
        Operand(kind, (d, 1, heads, queries), (1, row, d, row), name="src1 (Q)"),
    )
    av = (
        Operand(kind, ("n", dv, kv_heads, 1), None, name="src0 (V)"),
        Operand(kind, ("n", 1, heads, queries), None, name="src1 (P)"),
    )
    return (
        _product(site, queries, "QK", qk, Operand(kind, ("n", 1, heads, queries), name="dst")),
        _product(site, queries, "AV", av, Operand(kind, (dv, 1, heads, queries), name="dst")),
    )


def _product(
    site: AttentionSite, queries: int, role: str, sources: tuple[Operand, Operand], result: Operand
) -> Descriptor:
    return Descriptor(
        operator="mul_mat",
        domain=GGML,
        inputs=sources,
        outputs=(result,),
        attributes=(("role", role),),
        site=site.name,
        part="qb",
        queries=queries,
        example=f"{site.name} {role}",
    )
