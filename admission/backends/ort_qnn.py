"""The QNN provider, as the package onnxruntime-qnn has it."""

from __future__ import annotations

from qbpass.admission.backends.answers import FalseAnswer
from qbpass.admission.backends.descriptor import Descriptor, Operand
from qbpass.admission.backends.rule import Backend, Source, Target
from qbpass.admission.backends.versions import VersionRange


class DynamicShape:
    """What it refutes: A node with an operand or a result that is declared with a symbolic dimension.

    Why it holds: The provider refuses inputs and outputs of what it compiles whose shapes are not all numbers. Sessions
    over a MatMul, an Add and a Softmax with one symbolic dimension left them to the CPU provider; with numbers in its
    place the provider took them. A decoder whose past grows is dynamic, unless its dimensions are fixed first.

    Example: Keys (1, 3, past_sequence_length, 64).
    """

    name = "ort-qnn-dynamic-shape"
    versions = VersionRange("2.7.0", "2.7.0")
    sources = (
        Source(
            "onnxruntime-qnn",
            "2.7.0",
            "onnxruntime/core/providers/qnn/builder/qnn_model.cc",
            "message: Dynamic shape is not supported yet, for input:",
        ),
        Source("onnxruntime-qnn", "2.7.0", "a session over Add (1, 2, n, 8)", "assigned to CPUExecutionProvider"),
    )

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        dynamic = [operand.shape for operand in descriptor.operands if any(_symbols(operand))]
        if not dynamic:
            return None
        return FalseAnswer(
            "an operand or a result is declared with a symbolic dimension",
            {
                "shapes": [list(shape or ()) for shape in dynamic],
                "message": "Dynamic shape is not supported yet, for input:",
            },
        )


def _symbols(operand: Operand) -> list[str]:
    return [dim for dim in operand.shape or () if isinstance(dim, str)]


BACKEND = Backend(
    name="ort-qnn",
    title="ONNX Runtime, QNN provider",
    project="onnxruntime-qnn",
    provider="QNNExecutionProvider",
    default_version="2.7.0",
    aliases=("qnn", "QNNExecutionProvider"),
    rules=(DynamicShape(),),
)
