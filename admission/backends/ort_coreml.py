"""ONNX Runtime's CoreML provider, as the macOS wheels have it."""

from __future__ import annotations

from qbpass.admission.backends.answers import FalseAnswer
from qbpass.admission.backends.descriptor import Descriptor
from qbpass.admission.backends.rule import Backend, Source, Target, operators
from qbpass.admission.backends.versions import VersionRange

_READ = VersionRange("1.24.1", "1.32.0")
_EACH = "1.24.1 to 1.32.0, each release for macOS"

# The operators that CreateOpBuilderRegistrations registers a builder for, in any release of the range: 55 in 1.24.1,
# none of which was ever taken away.
BUILDERS = operators(
    """
    Add And ArgMax AveragePool BatchNormalization Cast Ceil Clip Concat Conv ConvTranspose Cos DepthToSpace Div Elu Erf
    Exp Flatten FusedConv Gather GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool GridSample GroupNormalization
    HardSigmoid Identity InstanceNormalization LRN LayerNormalization LeakyRelu MatMul Max MaxPool Mul PRelu Pad Pow
    QuickGelu Reciprocal ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Relu Reshape Resize Round Shape Sigmoid
    Sin Slice Softmax Softplus Split Sqrt Squeeze Sub Tanh Tile Transpose Unsqueeze Where
    """
)

MAX_RANK = 5


class UnbuiltOperator:
    """What it refutes: An operator that the provider has no builder for.

    Why it holds: The provider takes a node only where a builder is registered under its operator's name; the names
    were read off CreateOpBuilderRegistrations in each release's library.

    Example: `ScatterND`, which writes new rows into a KV cache in place; `FusedMatMul`; `If`.
    """

    name = "ort-coreml-operator"
    versions = _READ
    sources = (
        Source(
            "onnxruntime",
            _EACH,
            "onnxruntime/core/providers/coreml/builders/op_builder_factory.cc",
            "CreateOpBuilderRegistrations",
        ),
    )

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        if descriptor.operator in BUILDERS:
            return None
        return FalseAnswer(
            "the provider has no builder for it",
            {"absent": descriptor.operator, "builders": len(BUILDERS)},
        )


class InputRank:
    """What it refutes: A node with an input of more than five dimensions.

    Why it holds: The provider's check of a node's inputs refuses them.

    Example: Keys viewed as (KV heads, group, queries, 1, d, 1).
    """

    name = "ort-coreml-rank"
    versions = _READ
    sources = (
        Source(
            "onnxruntime",
            _EACH,
            "onnxruntime/core/providers/coreml/builders/helper.cc",
            "message: CoreML EP doesn't allow input shapes with rank greater than 5.",
        ),
    )

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        for index, operand in enumerate(descriptor.inputs):
            if operand is not None and operand.shape is not None and len(operand.shape) > MAX_RANK:
                return FalseAnswer(
                    f"input {index} has {len(operand.shape)} dimensions, more than {MAX_RANK}",
                    {
                        "input": index,
                        "shape": list(operand.shape),
                        "message": "CoreML EP doesn't allow input shapes with rank greater than 5.",
                    },
                )
        return None


class EmptyInput:
    """What it refutes: A node with an input that has a dimension of zero.

    Why it holds: The provider's check of a node's inputs refuses them; the second input of Resize alone is let through.

    Example: A past of length zero in the shape of a KV cache.
    """

    name = "ort-coreml-empty-input"
    versions = _READ
    sources = (
        Source(
            "onnxruntime",
            _EACH,
            "onnxruntime/core/providers/coreml/builders/helper.cc",
            "message: CoreML does not support shapes with dimension values of 0.",
        ),
    )

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        for index, operand in enumerate(descriptor.inputs):
            if (descriptor.operator, index) == ("Resize", 1):
                continue
            if operand is not None and 0 in (operand.shape or ()):
                return FalseAnswer(
                    f"input {index} has a dimension of zero",
                    {
                        "input": index,
                        "shape": list(operand.shape or ()),
                        "message": "CoreML does not support shapes with dimension values of 0.",
                    },
                )
        return None


BACKEND = Backend(
    name="ort-coreml",
    title="ONNX Runtime, CoreML provider",
    project="onnxruntime",
    provider="CoreMLExecutionProvider",
    default_version="1.32.0",
    aliases=("coreml", "CoreMLExecutionProvider"),
    rules=(UnbuiltOperator(), InputRank(), EmptyInput()),
)
