"""A layer repeated in the graph is the layer that tracing would have written."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from tiny_models import llama, session, step, torch

from qbpass.models.export.layers import shortened, uniform_stack
from qbpass.models.export.torch_export import write_onnx


def operators(folder: Path) -> list[str]:
    """Operators but for the transposed weights, which a full trace folds."""
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    return sorted(n.op_type for n in graph.node if not (n.op_type == "Transpose" and n.input[0] in weights))


@pytest.mark.parametrize(("implementation", "opset"), [("eager", 18), ("sdpa", 20)])
def test_repeated_layers_give_the_bits_of_traced_ones(tmp_path: Path, implementation: str, opset: int) -> None:
    results, graphs = [], []
    for name, repeat in (("repeated", True), ("traced", False)):
        folder = tmp_path / name
        folder.mkdir()
        write_onnx(llama(4, implementation=implementation), opset, folder, repeat_layers=repeat)
        running = session(folder)
        prompt, past = step(running, [1, 2, 3, 4, 5], {})
        after, past = step(running, [6, 7], past)
        results.append([prompt.tobytes(), after.tobytes(), *(past[key].tobytes() for key in sorted(past))])
        graphs.append(operators(folder))
    assert results[0] == results[1]
    assert graphs[0] == graphs[1]


def test_attention_at_opset_23_is_one_node_a_layer(tmp_path: Path) -> None:
    write_onnx(llama(4, implementation="sdpa"), 23, tmp_path)
    assert operators(tmp_path).count("Attention") == 4


def test_layers_with_other_settings_are_not_taken_for_alike() -> None:
    model = llama(5)
    assert uniform_stack(model) is not None
    model.model.layers[4].self_attn.scaling = 0.5
    assert uniform_stack(model) is None


def test_layers_of_several_kinds_are_not_taken_for_alike() -> None:
    model = llama(4)
    model.config.layer_types = ["full_attention", "sliding_attention"] * 2
    assert uniform_stack(model) is None


def test_a_model_is_whole_again_after_tracing() -> None:
    model = llama(4)
    stack = uniform_stack(model)
    assert stack is not None
    with shortened(model, stack):
        assert len(model.model.layers) == 3
    assert tuple(model.model.layers) == stack.layers


def test_a_graph_whose_layers_differ_is_traced_whole(tmp_path: Path) -> None:
    """Same modules and settings, another computation: only the graph can tell."""
    model = llama(4)
    late = model.model.layers[2]
    forward = late.forward
    late.forward = lambda hidden, **rest: forward(torch.tanh(hidden), **rest)
    write_onnx(model, 18, tmp_path)
    assert operators(tmp_path).count("Tanh") == 1
