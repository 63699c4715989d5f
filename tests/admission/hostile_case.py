"""What a hostile model is: how it is written, and which answers to it are honest ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from site_graphs import Knobs, make_decoder

REFUSED = frozenset({2})  # the file is unusable: one line
REPORTED = frozenset({0, 1})  # still a graph that can be reported on
REFUSED_SITE = frozenset({1})  # still a graph, whose attention or interface is refused
ADMITTED = frozenset({0})  # the damage is to nothing that counts
ANY = frozenset({0, 1, 2})  # damage at random, or a graph that one version of ONNX Runtime loads and another does not

#: The folder beside the model's whose files no case may make anyone open, and the one the command runs in.
OUTSIDE, ELSEWHERE = "outside", "elsewhere"
SECRET = "secret.bin"
Builder = Callable[[Path], Path | None]


@dataclass(frozen=True)
class Case:
    """`build` writes a model into an empty folder and returns the MODEL argument (None: the folder's model.onnx).

    exported, frozen: the exit codes that are right for `admit --as-exported` and for `admit`, which is not run where
    frozen is None.
    """

    name: str
    build: Builder
    exported: frozenset[int] = REFUSED
    frozen: frozenset[int] | None = None


Codes = frozenset[int]
Damage = Callable[[onnx.ModelProto], None]


@dataclass
class Catalogue:
    """Cases of one kind. Where it is not said otherwise, the file is unusable and the command is `--as-exported`."""

    kind: str
    cases: list[Case] = field(default_factory=list)

    def add(self, name: str, build: Builder, exported: Codes = REFUSED, frozen: Codes | None = None) -> None:
        self.cases.append(Case(f"{self.kind}/{name}", build, exported, frozen))

    def file(self, exported: Codes = REFUSED, frozen: Codes | None = None) -> Callable[[Builder], Builder]:
        """Adds a function that writes the files itself."""

        def added(build: Builder) -> Builder:
            self.add(build.__name__.strip("_"), build, exported, frozen)
            return build

        return added

    def data(self, name: str, data: bytes, exported: Codes = REFUSED, frozen: Codes | None = None) -> None:
        """A file of these bytes."""

        def build(folder: Path) -> None:
            (folder / "model.onnx").write_bytes(data)

        self.add(name, build, exported, frozen)

    def graph(self, exported: Codes = REFUSED, frozen: Codes | None = None) -> Callable[[Damage], Damage]:
        """Adds a function that damages a healthy model."""

        def added(damage: Damage) -> Damage:
            self.damaged(damage.__name__.strip("_"), damage, exported, frozen)
            return damage

        return added

    def damaged(self, name: str, damage: Damage, exported: Codes = REFUSED, frozen: Codes | None = None) -> None:
        def build(folder: Path) -> None:
            model = healthy()
            damage(model)
            (folder / "model.onnx").write_bytes(model.SerializeToString())

        self.add(name, build, exported, frozen)


@cache
def healthy_bytes() -> bytes:
    data: bytes = make_decoder(Knobs(product="matmul")).model.SerializeToString()
    return data


def healthy() -> onnx.ModelProto:
    """A decoder of one layer that is admitted, and that ONNX Runtime runs."""
    return onnx.ModelProto.FromString(healthy_bytes())


def maker(model: onnx.ModelProto, output: str) -> onnx.NodeProto:
    """The node that makes a tensor."""
    return next(node for node in model.graph.node if output in node.output)


def insert_before(model: onnx.ModelProto, output: str, *nodes: onnx.NodeProto) -> None:
    """Nodes in front of the one that makes `output`."""
    at = list(model.graph.node).index(maker(model, output))
    for node in reversed(nodes):
        model.graph.node.insert(at, node)


def feed_through(model: onnx.ModelProto, output: str, operand: int, *nodes: onnx.NodeProto) -> None:
    """Nodes between an operand and its reader; the first reads `OLD`, the last one's first output is read instead."""
    reader = maker(model, output)
    old = reader.input[operand]
    for node in nodes:
        node.input[:] = [old if name == "OLD" else name for name in node.input]
    insert_before(model, output, *nodes)
    maker(model, output).input[operand] = nodes[-1].output[0]


def constant(model: onnx.ModelProto, name: str, value: object, dtype: str = "int64") -> str:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(value, dtype), name))
    return name


def declared(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    """The declaration of an input, an output or an inner tensor."""
    values = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    return next(value for value in values if value.name == name)


def initializer(model: onnx.ModelProto, name: str) -> TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def largest(model: onnx.ModelProto) -> TensorProto:
    """The largest initializer."""
    return max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))


node = helper.make_node
