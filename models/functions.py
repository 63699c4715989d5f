"""Model-local functions: written into the graph when it is loaded, so that every search sees one flat graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx.inliner

from qbpass.models.errors import ModelFileError
from qbpass.models.graph_order import subgraphs
from qbpass.models.graph_size import MAX_TENSORS

MAX_DEPTH = 64  # functions that call functions
MAX_NODES = MAX_TENSORS  # of the graph with every call written out

_Key = tuple[str, str, str]  # domain, name, overload


def inline_functions(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """The model with its functions written into its graph; `model` itself where it has none.

    Operators of a function written for another version of ONNX are converted to the graph's.

    Raises ModelFileError where functions call themselves, call each other too deep or grow beyond MAX_NODES nodes: a
    file of a few lines can describe a graph of any size. And where a function can't be written out.
    """
    if not model.functions:
        return model
    size = _Calls(model, path).of_graph(model.graph).nodes
    if size > MAX_NODES:
        raise ModelFileError(
            f"the functions in {path} make a graph of {size:,} nodes, more than the {MAX_NODES:,} that qbpass reads: "
            "export the model without functions"
        )
    try:
        flat = onnx.inliner.inline_local_functions(model, convert_version=True)
    except Exception as error:  # the inliner raises private types of its C++ library
        raise ModelFileError(
            f"the functions in {path} can't be written into the graph ({' '.join(str(error).split())[:160]}): export "
            "the model without functions"
        ) from error
    if flat.functions:
        raise ModelFileError(
            f"function {flat.functions[0].name!r} in {path} is written for operator sets that the graph does not "
            "import: export the model without functions"
        )
    known = {_domain(entry.domain) for entry in flat.opset_import}
    for entry in (entry for function in model.functions for entry in function.opset_import):
        if _domain(entry.domain) not in known:  # of operators that so far only a function used
            flat.opset_import.add(domain=entry.domain, version=entry.version)
            known.add(_domain(entry.domain))
    return flat


@dataclass(frozen=True)
class _Size:
    """nodes: with every call written out; height: of calls inside calls."""

    nodes: int
    height: int


class _Calls:
    """Sizes with every call written out. A function is measured once, however often it is called."""

    def __init__(self, model: onnx.ModelProto, path: Path) -> None:
        self._path = path
        self._bodies = {_key(function): function for function in model.functions}
        self._known: dict[_Key, _Size] = {}
        self._open: list[_Key] = []

    def of_graph(self, graph: onnx.GraphProto | onnx.FunctionProto) -> _Size:
        sizes = [size for node in graph.node for size in self._of_node(node)]
        return _Size(sum(size.nodes for size in sizes), max((size.height for size in sizes), default=0))

    def _of_node(self, node: onnx.NodeProto) -> Iterator[_Size]:
        key = (_domain(node.domain), node.op_type, node.overload)
        yield self._of_function(key) if key in self._bodies else _Size(1, 0)
        for body in subgraphs(node):
            yield self.of_graph(body)

    def _of_function(self, key: _Key) -> _Size:
        if key not in self._known:
            if key in self._open or len(self._open) >= MAX_DEPTH:
                raise self._too_deep(key)
            self._open.append(key)
            body = self.of_graph(self._bodies[key])
            self._open.pop()
            if body.height >= MAX_DEPTH:
                raise self._too_deep(key)
            self._known[key] = _Size(body.nodes, body.height + 1)
        return self._known[key]

    def _too_deep(self, key: _Key) -> ModelFileError:
        how = "calls itself" if key in self._open else f"calls others more than {MAX_DEPTH} deep"
        return ModelFileError(f"function {key[1]!r} in {self._path} {how}: export the model without functions")


def _key(function: onnx.FunctionProto) -> _Key:
    return _domain(function.domain), function.name, function.overload


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name
