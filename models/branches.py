"""Merged decoders: two decoders behind an If, of which the one with a past is made a flat graph.

optimum writes them: the branch for the first call and the branch with a past, chosen by the input use_cache_branch,
their weights in the outer graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx

from qbpass.models.dataflow import FUSED_ATTENTION
from qbpass.models.graph_order import node_reads, subgraphs

BRANCH_KEY = "qbpass.branch"  # metadata of a flat graph: which branch of which If it is

# From an input, or from the length of a past, to the condition of an If.
_CONDITION_OPS = frozenset(
    {
        "Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Not", "Gather", "Slice", "Shape", "Equal", "Greater",
        "GreaterOrEqual", "Less", "LessOrEqual",
    }
)  # fmt: skip


def flatten_merged(model: onnx.ModelProto) -> bool:
    """Makes a merged decoder the flat graph of its branch with a past, in place; False where it is no merged decoder.

    A merged decoder has one If at its top level whose branches hold attention and whose condition comes from one input.
    The branch with a past is the one that reads more of the graph's inputs of rank 3 and more. Inputs and weights that
    only the other branch read are left out of the flat graph. Weights are not touched: external references stay.
    """
    graph = model.graph
    found = [
        at for at, node in enumerate(graph.node) if node.op_type == "If" and any(map(holds_attention, subgraphs(node)))
    ]
    if len(found) != 1 or not _is_chosen_by_an_input(graph, graph.node[found[0]]) or not _named(graph.node[found[0]]):
        return False
    at = found[0]
    before, chooser, after = list(graph.node[:at]), graph.node[at], list(graph.node[at + 1 :])
    name, branch = _with_past(graph, chooser)
    read_before = _captured(graph)
    outer = {*_names(graph), *(output for node in graph.node for output in node.output)}
    nodes = [*before, *_inlined(graph, chooser, branch, outer), *after]
    model.metadata_props.add(key=BRANCH_KEY, value=f"{name} of {chooser.name or chooser.output[0]}")
    copies = [_copy(node) for node in nodes]  # they live in the list that is emptied next
    del graph.node[:]
    graph.node.extend(copies)
    _drop_unread(graph, read_before)
    return True


def holds_attention(graph: onnx.GraphProto) -> bool:
    """Whether a graph or a body inside it has a softmax or a fused attention."""
    return any(
        node.op_type == "Softmax" or node.op_type in FUSED_ATTENTION or any(map(holds_attention, subgraphs(node)))
        for node in graph.node
    )


def _is_chosen_by_an_input(graph: onnx.GraphProto, chooser: onnx.NodeProto) -> bool:
    makers = {name: maker for maker in graph.node for name in maker.output}
    condition = chooser.input[0] if chooser.input else ""
    for _ in range(8):
        maker = makers.get(condition)
        if maker is None or maker.op_type not in _CONDITION_OPS or not maker.input:
            break
        condition = maker.input[0]
    return condition in {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}


def _with_past(graph: onnx.GraphProto, node: onnx.NodeProto) -> tuple[str, onnx.GraphProto]:
    """(attribute, branch) of the branch that reads more caches."""
    caches = {v.name for v in graph.input if len(v.type.tensor_type.shape.dim) >= 3}
    return max(_named(node), key=lambda named: len(caches.intersection(_captured(named[1]))))


def _named(node: onnx.NodeProto) -> list[tuple[str, onnx.GraphProto]]:
    """(attribute, branch): both branches of an If, or none where a file has them in another form."""
    found = {a.name: a.g for a in node.attribute if a.HasField("g")}
    both = [(name, found[name]) for name in ("else_branch", "then_branch") if name in found]
    return both if len(both) == 2 else []


def _captured(graph: onnx.GraphProto) -> set[str]:
    return {name for node in graph.node for name in node_reads(node)}


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)


def _inlined(
    graph: onnx.GraphProto, chooser: onnx.NodeProto, branch: onnx.GraphProto, outer: set[str]
) -> list[onnx.NodeProto]:
    """The branch's nodes, its results under the If's own names; weights and declarations go into `graph`."""
    made = {output for node in branch.node for output in node.output if output}
    new: dict[str, str] = {}
    handed: list[onnx.NodeProto] = []
    for value, result in zip(branch.output, chooser.output, strict=False):
        if result and value.name in made and value.name not in new:
            new[value.name] = result
        elif result:  # a captured tensor, a weight, or a result that has a name already
            handed.append(onnx.helper.make_node("Identity", [value.name], [result]))
    used = outer | made
    for name in sorted(made | set(_names(branch))):
        if name in outer and name not in new:
            new[name] = _fresh(name, used)
    nodes = [_copy(node) for node in (*branch.node, *handed)]
    for node in nodes:
        _rename_reads(node, new)
    for node in nodes[: len(branch.node)]:
        node.output[:] = [new.get(name, name) for name in node.output]
    for field in ("initializer", "value_info"):
        for item in getattr(branch, field):
            added = getattr(graph, field).add()
            added.CopyFrom(item)
            added.name = new.get(item.name, item.name)
    return nodes


def _fresh(name: str, used: set[str]) -> str:
    number = 1
    while f"{name}.branch{number}" in used:
        number += 1
    used.add(f"{name}.branch{number}")
    return f"{name}.branch{number}"


def _rename_reads(node: onnx.NodeProto, new: dict[str, str]) -> None:
    node.input[:] = [new.get(name, name) for name in node.input]
    for body in subgraphs(node):
        for inner in body.node:
            _rename_reads(inner, new)
        for value in body.output:  # a body may hand out a tensor it captured
            value.name = new.get(value.name, value.name)


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


def _drop_unread(graph: onnx.GraphProto, read_before: set[str]) -> None:
    """The condition, and the inputs and weights that only it and the other branch read."""
    readers = Counter(name for node in graph.node for name in node_reads(node))
    readers.update(value.name for value in graph.output)
    for at in reversed(range(len(graph.node))):
        node = graph.node[at]
        if not any(readers[name] for name in node.output) and not read_before.isdisjoint(node.output):
            readers.subtract(node_reads(node))
            del graph.node[at]
    for field in (graph.input, graph.initializer):
        for at in reversed(range(len(field))):
            if field[at].name in read_before and not readers[field[at].name]:
                del field[at]
