"""A graph whose calls differ in values alone: what a CUDA graph can capture once and replay.

Its shapes are those of a width (rows of the call) and a bucket (keys that are bound); how many of the keys are filled
is data. Two things stand in the way of exported decoders. Keys behind the call's own are read and masked, so a row's
sums run further than in serial decoding: whether its bits bear that is a matter of kernels, and tried
(runtime/static_trial.py). And arithmetic on sizes, which ONNX Runtime does on the CPU, reaches the device by copies
inside the graph: a session that captures refuses those, and a replay would repeat old values. So that arithmetic is
split off: a small graph for the CPU computes, before the call, what the device reads of it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, helper

from qbpass.admission.calls.call import CALLS, Call
from qbpass.admission.size_nodes import SMALL
from qbpass.models.contract import DecoderContract
from qbpass.models.decoder import Decoder
from qbpass.models.graph_order import subgraphs
from qbpass.models.session import SessionSpec, open_session
from qbpass.rewrites.apply import PAST_INPUT, rewrite_graph
from qbpass.rewrites.lowering.fused_layouts import keeps_fused_rows
from qbpass.rewrites.plan import RewritePlan
from qbpass.rewrites.refused import RewriteRefused

#: Inputs that kernels of ONNX Runtime's CUDA provider take from the CPU's memory: operator -> positions. What is
#: missing here costs a copy, never a wrong result.
_ON_THE_HOST = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "GroupQueryAttention": (6,),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    "ReduceSum": (1,),
    "ReduceMean": (1,),
    "Reshape": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
}


#: A size of an input: fixed, or the rows of the call, or the keys that are bound.
Size = int | Literal["rows", "extent"]


@dataclass(frozen=True)
class StaticGraph:
    """device: the decoder. host: computes `fed`, inputs of `device`, from PAST_INPUT and, for each x of `shapes`, the
    shape of the input x, (rank,) int64, as input `x.shape`. None where nothing is to be computed.
    """

    device: onnx.ModelProto
    host: onnx.ModelProto | None
    fed: tuple[str, ...]
    shapes: Mapping[str, tuple[Size, ...]]
    takes_past: bool  # the host graph

    def shape(self, name: str, rows: int, extent: int) -> list[int]:
        """Of the input `name` in a call of so many rows and bound keys."""
        open_sizes = {"rows": rows, "extent": extent}
        return [size if isinstance(size, int) else open_sizes[size] for size in self.shapes[name]]


def static_graph(frozen: Decoder, plan: RewritePlan) -> StaticGraph:
    """Raises RewriteRefused for a plan whose graphs read sizes that change from call to call."""
    sliced = [entry.site.name for entry in plan.sites if plan.layout == "pq" or keeps_fused_rows(entry.site, "pq")]
    if sliced and plan.layout == "pq":
        raise RewriteRefused(
            f"layout pq ends each row's keys of {sliced[0]} by slicing, whose sizes change in every call: no static "
            "graph does that; rewrite with --layout qb",
            of_layout=True,
        )
    model = rewrite_graph(frozen, plan, "static")
    _position_rows(model, frozen.contract)
    return split(model, frozen.contract)


def _position_rows(model: onnx.ModelProto, contract: DecoderContract) -> None:
    """An exported mask compares keys with the rows' positions, which exporters count from the past's length.

    In a static graph that length is the bucket's, less the rows. So whatever counts past, past + 1, ... in calls of
    several sizes is replaced by the rows that the call writes, which are counted from PAST_INPUT.
    """
    graph = model.graph
    producer = {name: node for node in graph.node for name in node.output if name}
    rows = next(
        (n.output[0] for n in graph.node if n.op_type == "Range" and PAST_INPUT in _behind(n.input, producer)), None
    )
    if rows is None:  # every attention is told its lengths
        return
    host, of_past = _host_tensors(graph)
    counts = [n.output[0] for n in graph.node if n.op_type in ("Range", "Add") and n.output[0] in host - of_past]
    seen = (
        [_values(model, {name: f"{name}.seen" for name in counts}, contract, call) for call in CALLS] if counts else []
    )
    positions = {
        name for name in counts if all(_counts_rows(each[name], call) for each, call in zip(seen, CALLS, strict=True))
    }
    first = _behind([rows], producer)
    nodes = list(graph.node)
    for node in nodes:
        for place, name in enumerate(node.input):
            if name in positions:
                node.input[place] = rows
    nodes.sort(key=lambda node: not first.intersection(node.output))  # stable: what the rows need comes first
    del graph.node[:]
    graph.node.extend(nodes)


def _counts_rows(found: np.ndarray, call: Call) -> bool:
    return (
        found.dtype == np.int64
        and found.shape == (call.queries,)
        and found.tolist() == list(range(call.past, call.extent))
    )


def _values(
    model: onnx.ModelProto, wanted: dict[str, str], contract: DecoderContract, call: Call
) -> dict[str, np.ndarray]:
    """What these tensors are in a call whose cache is bound at its own extent."""
    producer = {name: node for node in model.graph.node for name in node.output if name}
    types = {value.name: value for value in onnx.shape_inference.infer_shapes(model).graph.value_info}
    types |= {value.name: value for value in model.graph.input}
    host, shapes = _host_model(model, wanted, producer, types)
    session = open_session(host.SerializeToString(), SessionSpec("cpu", threads=1))
    sizes = StaticGraph(model, host, (), {name: _sizes(types[name], contract) for name in shapes}, False)
    feeds = {f"{name}.shape": np.array(sizes.shape(name, call.queries, call.extent), np.int64) for name in shapes}
    return dict(zip(wanted, session.run(list(wanted.values()), feeds), strict=True))


def _sizes(declared: onnx.ValueInfoProto, contract: DecoderContract) -> tuple[Size, ...]:
    """An input's one open size is the rows of the call where it is given row by row, else the keys that are bound."""
    by_row = declared.name in (contract.input_ids, contract.position_ids)
    open_size: Size = "rows" if by_row else "extent"
    dims = declared.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") else open_size for dim in dims)


def split(model: onnx.ModelProto, contract: DecoderContract) -> StaticGraph:
    """The model without what it computes from the shapes of its inputs and from PAST_INPUT, which goes to the host."""
    graph = model.graph
    if any(True for node in graph.node for _ in subgraphs(node)):
        raise RewriteRefused("the graph has control flow, which no CUDA graph captures")
    host, of_past = _host_tensors(graph)
    producer = {name: node for node in graph.node for name in node.output if name}
    fed: dict[str, str] = {}
    for node in graph.node:
        if node.output[0] in host:
            continue
        for place, name in enumerate(node.input):
            if name not in host and name != PAST_INPUT:
                continue
            if place in _ON_THE_HOST.get(node.op_type, ()):
                if name in of_past:
                    raise RewriteRefused(
                        f"{node.op_type} {node.name!r} takes a size that changes in every call ({name!r}): no static "
                        "graph does that"
                    )
            else:
                fed[name] = f"{name}.fed"
                node.input[place] = fed[name]
    types = {value.name: value for value in onnx.shape_inference.infer_shapes(model).graph.value_info}
    types |= {value.name: value for value in graph.input}
    host_model, shapes = _host_model(model, fed, producer, types) if fed else (None, ())
    takes_past = host_model is not None and any(value.name == PAST_INPUT for value in host_model.graph.input)
    inputs = [_declared(types[name], new) for name, new in fed.items()]
    _prune(graph)
    read = {name for node in graph.node for name in node.input}
    kept = [value for value in (*graph.input, *inputs) if value.name in read]
    del graph.input[:]
    graph.input.extend(kept)
    sizes = {name: _sizes(types[name], contract) for name in shapes}
    return StaticGraph(model, host_model, tuple(fed.values()), sizes, takes_past)


def _host_tensors(graph: onnx.GraphProto) -> tuple[set[str], set[str]]:
    """Tensors that follow from the inputs' shapes, small constants and the past; and those that change with it."""
    inputs = {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}
    constants = {tensor.name for tensor in graph.initializer if _elements(tensor.dims) <= SMALL}
    host, of_past = set[str](), {PAST_INPUT}
    for node in graph.node:
        reads = [name for name in node.input if name]
        if node.op_type == "Constant":
            constants.update(node.output)
        elif (node.op_type == "Shape" and not node.domain and reads[0] in inputs) or (
            any(name in host or name == PAST_INPUT for name in reads)
            and all(name in host or name in constants or name == PAST_INPUT for name in reads)
        ):
            host.update(name for name in node.output if name)
            if node.op_type != "Shape" and of_past.intersection(reads):
                of_past.update(node.output)
    return host, of_past


def _host_model(
    model: onnx.ModelProto,
    fed: dict[str, str],
    producer: dict[str, onnx.NodeProto],
    types: dict[str, onnx.ValueInfoProto],
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The nodes behind `fed`, in the graph's order, with shapes as inputs; and the inputs whose shapes they take."""
    inputs_of_graph = {value.name for value in model.graph.input}
    needed = _behind(fed, producer, at=inputs_of_graph)
    nodes: list[onnx.NodeProto] = []
    shapes: dict[str, int] = {}
    for node in model.graph.node:
        if not needed.intersection(node.output):
            continue
        if node.op_type == "Shape" and node.input[0] in inputs_of_graph:
            source = node.input[0]
            shapes[source] = len(types[source].type.tensor_type.shape.dim)
            nodes += _taken_from(node, f"{source}.shape")
        else:
            nodes.append(node)
    nodes += [helper.make_node("Identity", [name], [new], f"qbpass/fed/{name}") for name, new in fed.items()]
    read = {name for node in nodes for name in node.input}
    inputs = [
        helper.make_tensor_value_info(f"{name}.shape", TensorProto.INT64, [rank]) for name, rank in shapes.items()
    ]
    if PAST_INPUT in read:
        inputs.append(helper.make_tensor_value_info(PAST_INPUT, TensorProto.INT64, [1]))
    graph = helper.make_graph(
        nodes,
        "sizes",
        inputs,
        [_declared(types[name], new) for name, new in fed.items()],
        [tensor for tensor in model.graph.initializer if tensor.name in read],
    )
    made = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    return made, tuple(shapes)


def _taken_from(node: onnx.NodeProto, shape: str) -> Iterator[onnx.NodeProto]:
    """What a Shape node gives, of a shape that is there already."""
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    if not bounds:
        yield helper.make_node("Identity", [shape], node.output, node.name)
        return
    names = []
    for name, value in (("start", bounds.get("start", 0)), ("end", bounds.get("end", 2**31))):
        names.append(f"{node.output[0]}/{name}")
        tensor = helper.make_tensor(names[-1], TensorProto.INT64, [1], [value])
        yield helper.make_node("Constant", [], names[-1:], f"{node.name}/{name}", value=tensor)
    yield helper.make_node("Slice", [shape, *names], node.output, node.name)


def _behind(wanted: Iterable[str], producer: dict[str, onnx.NodeProto], at: Container[str] = frozenset()) -> set[str]:
    """Every tensor that the wanted ones are computed from. at: tensors of which only the shape is asked for."""
    found, left = set[str](), list(wanted)
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        if name in producer:
            shape_of_input = producer[name].op_type == "Shape" and producer[name].input[0] in at
            left.extend(tensor for tensor in producer[name].input if tensor and not shape_of_input)
    return found


def _prune(graph: onnx.GraphProto) -> None:
    """Nodes and constants that no output needs any more."""
    needed = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    constants = [tensor for tensor in graph.initializer if tensor.name in needed]
    del graph.initializer[:]
    graph.initializer.extend(constants)


def _declared(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    """The same type without sizes: of a rank only."""
    made = onnx.ValueInfoProto()
    made.CopyFrom(value)
    made.name = name
    for index, dim in enumerate(made.type.tensor_type.shape.dim):
        dim.Clear()
        dim.dim_param = f"{name}.{index}"
    return made


def _elements(dims: Iterable[int]) -> int:
    count = 1
    for dim in dims:
        count *= dim
    return count
