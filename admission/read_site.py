"""Fills an AttentionSite from its two products, its softmax and the KV pair they were tied to."""

from __future__ import annotations

import onnx

from qbpass.admission.dataflow import Flow, node_name
from qbpass.admission.report import Diagnostic, SiteReport
from qbpass.admission.shapes import Shape
from qbpass.admission.site import AttentionSite, SiteNodes
from qbpass.admission.walks import CacheTie
from qbpass.models.dataflow import attribute


def read_site(
    softmax: onnx.NodeProto, qk: onnx.NodeProto, av: onnx.NodeProto, key: CacheTie, value: CacheTie, flow: Flow
) -> SiteReport:
    """The site, unchecked; refused with UNKNOWN_SHAPE where a head count or head dimension is no constant of the graph."""
    name = f"attention.{key.pair.layer}"
    nodes = _nodes(softmax, qk, av, key, value, flow)
    output = av.output[0]
    q_BHQD, k_BKND, v_BKNE = (flow.shape(tensor) for tensor in (qk.input[0], key.tensor, value.tensor))
    sizes = (_dim(q_BHQD, -3), _dim(k_BKND, 1), _dim(q_BHQD, -1), _dim(v_BKNE, -1))
    heads, kv_heads, head_dim, value_dim = sizes
    if heads is None or kv_heads is None or head_dim is None or value_dim is None:
        evidence = {qk.input[0]: _listed(q_BHQD), key.tensor: _listed(k_BKND), value.tensor: _listed(v_BKNE)}
        message = "head counts or head dimensions are not constants of the graph; export with fixed head counts"
        return SiteReport(
            name, "decomposed", key.pair.layer, None, (Diagnostic("UNKNOWN_SHAPE", name, message, evidence),)
        )
    mask = mask_tensor(nodes.score_path, flow)
    named = {qk.input[0]: q_BHQD, key.tensor: k_BKND, value.tensor: v_BKNE, output: flow.shape(output)}
    if mask is not None:
        named[mask] = flow.shape(mask)
    site = AttentionSite(
        name=name,
        kind="decomposed",
        layer=key.pair.layer,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        elem_type=flow.elem_type(qk.input[0]),
        scale=read_scale(nodes, flow),
        q=qk.input[0],
        k=key.tensor,
        v=value.tensor,
        mask=mask,
        output=output,
        past_key=key.pair.past_key,
        past_value=key.pair.past_value,
        new_key=new_rows(key.tensor, key.pair.past_key, flow),
        new_value=new_rows(value.tensor, key.pair.past_value, flow),
        present_key=key.pair.present_key,
        present_value=key.pair.present_value,
        nodes=nodes,
        shapes={tensor: shape for tensor, shape in named.items() if shape is not None},
    )
    return SiteReport(name, site.kind, site.layer, site)


def _nodes(
    softmax: onnx.NodeProto, qk: onnx.NodeProto, av: onnx.NodeProto, key: CacheTie, value: CacheTie, flow: Flow
) -> SiteNodes:
    def path(source: str, sink: str) -> tuple[str, ...]:
        return tuple(node_name(node) for node in flow.between(source, sink))

    return SiteNodes(
        key_path=path(key.tensor, qk.input[1]),
        qk=node_name(qk),
        score_path=path(qk.output[0], softmax.input[0]),
        softmax=node_name(softmax),
        prob_path=path(softmax.output[0], av.input[0]),
        av=node_name(av),
        value_path=path(value.tensor, av.input[1]),
    )


def mask_tensor(score_path: tuple[str, ...], flow: Flow) -> str | None:
    """What the last Add before the softmax adds to the scores; None where nothing is added."""
    added = added_terms(score_path, flow)
    return added[-1] if added else None


def added_terms(score_path: tuple[str, ...], flow: Flow) -> list[str]:
    """Every tensor that an Add of the score path adds to the scores, in order."""
    path = set(score_path)
    terms: list[str] = []
    for name in score_path:
        node = flow.node(name)
        if node.op_type == "Add":
            terms.extend(
                tensor for tensor in node.input if tensor not in path and not _is_scores(tensor, score_path, flow)
            )
    return terms


def _is_scores(tensor: str, score_path: tuple[str, ...], flow: Flow) -> bool:
    producer = flow.producer(tensor)
    return (
        producer is not None
        and producer.op_type in ("MatMul", "FusedMatMul")
        and tensor == _qk_output(score_path, flow)
    )


def _qk_output(score_path: tuple[str, ...], flow: Flow) -> str | None:
    """The QK product's output: what the score path's first node reads from a product."""
    reads = flow.node(score_path[0]).input
    products = [
        tensor
        for tensor in reads
        if (node := flow.producer(tensor)) is not None and node.op_type in ("MatMul", "FusedMatMul")
    ]
    return products[0] if products else None


def read_scale(nodes: SiteNodes, flow: Flow) -> float | None:
    """The product of the constant factors on the scores: alpha, Mul, Div, and one on each operand of the product.

    None where a factor is not a scalar constant.
    """
    qk = flow.node(nodes.qk)
    scale = float(attribute(qk, "alpha", 1.0))
    query = flow.producer(qk.input[0])
    factors = [flow.node(name) for name in (*nodes.key_path, *nodes.score_path)]
    for node in ([query] if query is not None else []) + factors:
        factor = constant_factor(node, flow)
        if factor is not None:
            scale *= factor
        elif node is not query and node.op_type in ("Mul", "Div"):
            return None
    return scale


def constant_factor(node: onnx.NodeProto, flow: Flow) -> float | None:
    """The scalar constant by which a Mul or Div multiplies its other operand; None for every other node."""
    if node.op_type == "Mul":
        return next((value for tensor in node.input if (value := flow.scalar(tensor)) is not None), None)
    if node.op_type == "Div":
        value = flow.scalar(node.input[1])
        return 1.0 / value if value else None
    return None


def new_rows(present: str, past: str, flow: Flow) -> str | None:
    """What is concatenated behind the past; None where the present is made in another way."""
    node = flow.producer(present)
    if node is None or node.op_type != "Concat" or len(node.input) != 2 or node.input[0] != past:
        return None
    return str(node.input[1])


def _dim(shape: Shape | None, axis: int) -> int | None:
    dim = shape[axis] if shape is not None and len(shape) >= abs(axis) and axis < len(shape) else None
    return dim if isinstance(dim, int) else None


def _listed(shape: Shape | None) -> list[int | str | None] | None:
    return None if shape is None else list(shape)
