"""What the machine has, and whether the provider's sessions load on it at all."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from qbpass.models.processor import gpu_libraries, gpu_name, processor_name
from qbpass.models.recipe import machine_facts
from qbpass.models.session import SessionSpec, open_session

_PACKAGES = ("qbpass", "onnxruntime", "onnxruntime-gpu", "onnxruntime-genai", "onnxruntime-genai-cuda", "onnx", "numpy")


def machine(question: Mapping[str, Any]) -> dict[str, Any]:
    """Names and versions. Raises nothing for a machine without a GPU: that is for `session` to find."""
    import onnxruntime as ort

    spec = SessionSpec(**question["spec"])
    return {
        "gpu": gpu_name() if spec.provider == "cuda" else None,
        "nvidia-smi": _nvidia_smi(),
        "gpu libraries": list(gpu_libraries()),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "onnxruntime": ort.__version__,
        "providers": ort.get_available_providers(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "recipe": _recipe(spec),
    }


def _recipe(spec: SessionSpec) -> dict[str, Any] | str:
    try:
        return machine_facts(spec)
    except Exception as error:
        return str(error)


def _nvidia_smi() -> str | None:
    """Its own table, for whoever reads the results."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        return subprocess.run([tool], capture_output=True, text=True, timeout=30, check=False).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def session(question: Mapping[str, Any]) -> dict[str, Any]:
    """A product of two small matrices on the provider. Raises ProviderError where it does not load."""
    spec = SessionSpec(**question["spec"])
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64]) for name in ("a", "b", "c")]
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], "product", info[:2], info[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    opened = open_session(model.SerializeToString(), spec)
    a, b = np.random.default_rng(0).standard_normal((2, 64, 64), dtype=np.float32)
    gap = float(np.abs(opened.run(None, {"a": a, "b": b})[0] - a @ b).max())
    if not gap < 1e-3:
        raise AssertionError(f"a product of two 64 x 64 matrices is wrong by {gap}")
    return {"providers": opened.get_providers(), "max_abs_difference_to_numpy": gap}
