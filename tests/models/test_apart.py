"""A graph that crashes, hangs or bloats ONNX Runtime's optimizer does so in another process, and ends in one line."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tiny_graphs import save, tiny_decoder

from qbpass.models.apart import Limits, write_optimized
from qbpass.models.errors import ModelFileError, ProviderError
from qbpass.models.session import SessionSpec

SPEC = SessionSpec(threads=1)
LIMITS = Limits(seconds=2, memory=2**31, output=2**26)
SMALLEST = -(2**63)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have other signals and limits")


def computing(*nodes: onnx.NodeProto, **constants: Any) -> onnx.ModelProto:
    """A graph whose nodes, the last of which makes `y`, compute with constants alone."""
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    out = [helper.make_empty_tensor_value_info(name) for name in ("y", "z")]
    graph = helper.make_graph([*nodes, helper.make_node("Neg", ["x"], ["z"])], "g", [x], out, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def gives_up(model: onnx.ModelProto, folder: Path, says: str, limits: Limits = LIMITS) -> None:
    with pytest.raises(ModelFileError, match=says) as caught:
        write_optimized(save(model, folder), SPEC, folder / "optimized.onnx", limits)
    assert "\n" not in str(caught.value)
    assert not (folder / "optimized.onnx").exists()


def test_a_graph_that_crashes_onnx_runtime_is_named(tmp_path: Path) -> None:
    divided = computing(helper.make_node("Div", ["a", "b"], ["y"]), a=np.array([SMALLEST]), b=np.array([-1]))
    gives_up(divided, tmp_path, r"it crashed \(signal 8, SIGFPE\)")


def test_a_graph_that_takes_hours_is_given_up(tmp_path: Path) -> None:
    products = [helper.make_node("MatMul", [f"m{k}", f"m{k}"], [f"m{k + 1}"]) for k in range(1000)]
    made = [helper.make_node("ConstantOfShape", ["size"], ["m0"]), *products]
    endless = computing(*made, helper.make_node("Neg", ["m1000"], ["y"]), size=np.array([2048, 2048]))
    gives_up(endless, tmp_path, "it took more than 1 s of processor time", replace(LIMITS, seconds=1))


def test_a_graph_that_takes_much_memory_is_not_given_it(tmp_path: Path) -> None:
    """ONNX Runtime leaves what it has no memory for to the first call."""
    made = [helper.make_node("ConstantOfShape", ["size"], ["large"]), helper.make_node("ReduceSum", ["large"], ["y"])]
    path = save(computing(*made, size=np.array([2**26])), tmp_path)  # 256 MiB
    for memory, computed in ((2**28, False), (2**31, True)):
        write_optimized(path, SPEC, tmp_path / "optimized.onnx", replace(LIMITS, memory=memory))
        left = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
        assert ("ReduceSum" not in left) == computed


def test_a_graph_that_fills_the_disk_is_given_up(tmp_path: Path) -> None:
    filled = computing(helper.make_node("ConstantOfShape", ["size"], ["y"]), size=np.array([2**26]))
    with pytest.raises(ModelFileError, match=r"it wrote more than 0\.1 GiB"):
        write_optimized(save(filled, tmp_path), SPEC, tmp_path / "optimized.onnx", LIMITS)


def test_a_process_that_waits_for_ever_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qbpass.models.apart._CHILD", "import time; time.sleep(1000)")
    monkeypatch.setattr("qbpass.models.apart._PATIENCE", 0.1)
    gives_up(tiny_decoder(1), tmp_path, "it had not ended after 0 s")


def test_what_onnx_runtime_refuses_it_refuses_here_in_its_own_words(tmp_path: Path) -> None:
    gives_up(
        computing(helper.make_node("Frobnicate", ["x"], ["y"])), tmp_path, "could not load the graph: .*Frobnicate"
    )


def test_a_provider_that_is_not_there_is_an_error_here_too(tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match="unknown provider 'tpu'"):
        write_optimized(save(tiny_decoder(1), tmp_path), SessionSpec("tpu", 1), tmp_path / "optimized.onnx", LIMITS)


def test_a_healthy_graph_is_written(tmp_path: Path) -> None:
    write_optimized(save(tiny_decoder(1), tmp_path), SPEC, tmp_path / "optimized.onnx", LIMITS)
    assert onnx.load(tmp_path / "optimized.onnx").graph.node


def test_limits_grow_with_the_graph() -> None:
    small, large = Limits.of(10**4), Limits.of(32 * 10**9)
    assert small.seconds == 10
    assert large.seconds == 10 + 3200
    assert large.memory > 4 * 32 * 10**9 < large.output
