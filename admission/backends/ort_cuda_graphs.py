"""ONNX Runtime's CUDA provider with `enable_cuda_graph`."""

from __future__ import annotations

from qbpass.admission.backends.answers import FalseAnswer
from qbpass.admission.backends.descriptor import Descriptor
from qbpass.admission.backends.ort_cuda import RULES
from qbpass.admission.backends.rule import Backend, Source, Target
from qbpass.admission.backends.versions import VersionRange

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})


class CapturedControlFlow:
    """What it refutes: `If`, `Loop` and `Scan` in a session that captures CUDA graphs.

    Why it holds: A session with `enable_cuda_graph` refuses to load a graph that holds one of them, whatever runs
    inside. That includes the guard of a guarded rewrite; `qbpass rewrite --emit specialized` writes graphs without it.

    Example: decoder.onnx of a bundle: an `If` on the phase around each attention.
    """

    name = "ort-cuda-graphs-control-flow"
    versions = VersionRange("1.24.1", "1.32.0")
    sources = (
        Source(
            "onnxruntime",
            "1.24.1 to 1.32.0, each release",
            "onnxruntime/core/session/inference_session.cc",
            "message: This session cannot use the graph capture feature as requested by the user as the model has "
            "control flow nodes",
        ),
    )

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        if descriptor.domain or descriptor.operator not in CONTROL_FLOW:
            return None
        return FalseAnswer(
            f"a session that captures CUDA graphs refuses a model with {descriptor.operator}",
            {
                "bodies": list(descriptor.bodies),
                "message": "This session cannot use the graph capture feature as requested by the user as the model "
                "has control flow nodes which can't be supported by CUDAExecutionProvider",
            },
        )


BACKEND = Backend(
    name="ort-cuda-graphs",
    title="ONNX Runtime, CUDA provider under CUDA graphs",
    project="onnxruntime",
    provider="CUDAExecutionProvider",
    default_version="1.31.1",
    aliases=("cuda-graphs", "cuda-graph", "ort-cuda-graph"),
    rules=(*RULES, CapturedControlFlow()),
)
