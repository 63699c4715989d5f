"""ONNX Runtime's own WebGPU provider, as the package onnxruntime-webgpu has it.

onnxruntime-web holds two: this one in its bundle `onnxruntime-web/webgpu`, and in the others the older one of
ort_web_jsep.py.
"""

from __future__ import annotations

from qbpass.admission.backends.answers import FalseAnswer
from qbpass.admission.backends.descriptor import Descriptor
from qbpass.admission.backends.kernel_rule import KERNEL_REGISTRATION
from qbpass.admission.backends.rule import Backend, Source, Target, operators
from qbpass.admission.backends.versions import VersionRange

# Registered kernels of 1.25.0 and 1.27.0 by operator: the classes kWebGpuExecutionProvider_*, and the five operators
# that are registered by functions (Cast, Expand, GroupQueryAttention, Range, Unsqueeze).
ONNX = operators(
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Cast Ceil Clip Concat Conv
    ConvTranspose Cos Cosh CumSum DepthToSpace DequantizeLinear Div Einsum Elu Equal Erf Exp Expand Flatten Floor Gather
    GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GridSample HardSigmoid
    Identity If InstanceNormalization LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LpNormalization MatMul
    MaxPool MemcpyFromHost MemcpyToHost Mul Neg Not Pad Pow RMSNormalization Range Reciprocal ReduceL1 ReduceL2
    ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize
    RotaryEmbedding ScatterElements ScatterND Shape Sigmoid SimplifiedLayerNormalization Sin Sinh Slice Softmax Softplus
    Split Sqrt Squeeze Sub Tan Tanh ThresholdedRelu Tile TopK Transpose Unsqueeze Where
    """
)
MICROSOFT = operators(
    """
    Attention BiasAdd BiasGelu BiasSplitGelu CausalConvWithState FastGelu FusedConv GatherBlockQuantized Gelu
    GroupQueryAttention LinearAttention MatMulNBits MatMulNBitsMlp MatMulNBitsQkv MoE MultiHeadAttention QMoE QuickGelu
    RotaryEmbedding SkipLayerNormalization SkipSimplifiedLayerNormalization
    """
)


class UnregisteredOperator:
    """What it refutes: An operator that the provider registers no kernel for.

    Why it holds: The provider runs a node only with a registered kernel. Each registration is a class of its own, and
    the classes were read off the symbols of the packages' libraries, with the functions that register the rest.

    Example: `FusedMatMul`, which the graphs that qbpass writes are made of; `TensorScatter`; ONNX's `Attention`.
    """

    name = "ort-webgpu-operator"
    versions = VersionRange("1.25.0", "1.27.0")
    sources = (
        Source(
            "onnxruntime-webgpu",
            "1.25.0 and 1.27.0, for macOS",
            "onnxruntime/core/providers/webgpu/webgpu_execution_provider.cc",
            "RegisterKernels",
        ),
        Source(
            "onnxruntime-webgpu",
            "1.25.0 and 1.27.0, for macOS",
            "onnxruntime/contrib_ops/webgpu/webgpu_contrib_kernels.cc",
            "RegisterWebGpuContribKernels",
        ),
    )

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        listed = {"": ONNX, "com.microsoft": MICROSOFT}.get(descriptor.domain)
        if listed is None or descriptor.operator in listed:
            return None
        return FalseAnswer(
            "the provider registers no kernel for it",
            {"absent": descriptor.label, "operators": len(listed)},
        )


BACKEND = Backend(
    name="ort-webgpu",
    title="ONNX Runtime, WebGPU provider",
    project="onnxruntime-webgpu",
    provider="WebGpuExecutionProvider",
    default_version="1.27.0",
    aliases=("webgpu", "WebGpuExecutionProvider"),
    rules=(KERNEL_REGISTRATION, UnregisteredOperator()),
)
