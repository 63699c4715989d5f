"""Graphs with a few random changes, put back into topological order where they can be, so that searches meet them."""

from __future__ import annotations

import math
import random

import numpy as np
import onnx
from hostile_case import ANY, Catalogue, healthy
from onnx import AttributeProto, TensorProto, helper, numpy_helper

MUTATIONS = Catalogue("mutated")
SEEDS = 60
_NUMBERS = (0, 1, -1, 2, 3, 7, 64, -99, 2**31, 2**40, 2**62, -(2**62))
_OPERATORS = (
    *(
        "MatMul",
        "Softmax",
        "Concat",
        "Reshape",
        "Transpose",
        "Expand",
        "Where",
        "Mul",
        "Add",
        "Gather",
        "Slice",
        "Cast",
    ),
    *(
        "Range",
        "Tile",
        "NonZero",
        "ScatterND",
        "GatherND",
        "Shape",
        "ConstantOfShape",
        "Identity",
        "ReduceSum",
        "Split",
    ),
)


def mutated(seed: int) -> onnx.ModelProto:
    """A healthy model with one to eight changes, each of a random kind at a random place."""
    chance, model = random.Random(seed), healthy()
    for _ in range(chance.choice((1, 1, 2, 3, 5, 8))):
        chance.choice(_CHANGES)(model.graph, chance)
    if seed % 5:
        _sort(model.graph)
    return model


def _operand(graph: onnx.GraphProto, chance: random.Random) -> None:
    node = chance.choice(graph.node)
    names = [name for entry in graph.node for name in entry.output] + [value.name for value in graph.input]
    if node.input:
        node.input[chance.randrange(len(node.input))] = chance.choice([*names, ""])


def _operator(graph: onnx.GraphProto, chance: random.Random) -> None:
    chance.choice(graph.node).op_type = chance.choice(_OPERATORS)


def _operand_count(graph: onnx.GraphProto, chance: random.Random) -> None:
    node = chance.choice(graph.node)
    if chance.random() < 0.5:
        node.input.append(chance.choice([*node.input, ""]))
    elif node.input:
        del node.input[chance.randrange(len(node.input))]


def _attribute(graph: onnx.GraphProto, chance: random.Random) -> None:
    node = chance.choice([entry for entry in graph.node if entry.attribute])
    attribute = chance.choice(node.attribute)
    if attribute.type == AttributeProto.INT:
        attribute.i = chance.choice(_NUMBERS)
    elif attribute.type == AttributeProto.INTS:
        attribute.ints[:] = [chance.choice(_NUMBERS) for _ in range(chance.randrange(6))]
    else:
        del node.attribute[:]


def _weight(graph: onnx.GraphProto, chance: random.Random) -> None:
    tensor = chance.choice(graph.initializer)
    values = numpy_helper.to_array(tensor).copy()
    numbers = _NUMBERS if values.dtype.kind == "i" else (0.0, 1.0, -1e9, math.nan, math.inf)
    values.reshape(-1)[chance.randrange(values.size)] = np.array(chance.choice(numbers)).astype(values.dtype)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _declaration(graph: onnx.GraphProto, chance: random.Random) -> None:
    stated = chance.choice([*graph.input, *graph.output, *graph.value_info]).type.tensor_type
    if chance.random() < 0.3:
        stated.elem_type = chance.choice(TensorProto.DataType.values())
    elif stated.shape.dim and chance.random() < 0.5:
        chance.choice(stated.shape.dim).dim_value = chance.choice(_NUMBERS)
    elif stated.shape.dim:
        chance.choice(stated.shape.dim).dim_param = chance.choice(("past", "queries", "1", "cls", "total", ""))
    else:
        stated.ClearField("shape")


def _node(graph: onnx.GraphProto, chance: random.Random) -> None:
    at = chance.randrange(len(graph.node))
    if chance.random() < 0.5:
        del graph.node[at]
    else:
        twin = helper.make_node(graph.node[at].op_type, graph.node[at].input, [f"twin{chance.randrange(10**6)}"])
        graph.node.insert(chance.randrange(len(graph.node)), twin)


_CHANGES = (_operand, _operand, _operator, _operand_count, _attribute, _weight, _declaration, _node)


def _sort(graph: onnx.GraphProto) -> None:
    """Nodes whose operands are there, in order; outputs that nobody makes any more are left out."""
    made = {"", *(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer)}
    kept: list[onnx.NodeProto] = []
    waiting = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    for _ in range(3):
        for node in list(waiting):
            if made.issuperset(node.input) and made.isdisjoint(filter(None, node.output)):
                kept.append(node)
                made.update(node.output)
                waiting.remove(node)
    del graph.node[:]
    graph.node.extend(kept)
    outputs = [value for value in graph.output if value.name in made]
    del graph.output[:]
    graph.output.extend(outputs)


def _copy_of(seed: int) -> None:
    MUTATIONS.damaged(f"seed_{seed}", lambda model: model.CopyFrom(mutated(seed)), ANY, ANY if seed % 6 == 0 else None)


for _seed in range(SEEDS):
    _copy_of(_seed)
