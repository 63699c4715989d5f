"""The WebGPU provider in JavaScript (JSEP) of onnxruntime-web's bundles other than `onnxruntime-web/webgpu`."""

from __future__ import annotations

from qbpass.admission.backends.answers import FalseAnswer
from qbpass.admission.backends.descriptor import Descriptor
from qbpass.admission.backends.rule import Backend, Source, Target, operators
from qbpass.admission.backends.versions import VersionRange

# docs/webgpu-operators.md of onnxruntime-web 1.30.0; those of 1.24.1 to 1.27.0 lack DFT and HardSwish, else nothing.
ONNX = operators(
    """
    Abs Acos Acosh Add ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Cast Ceil Clip Concat Conv
    ConvTranspose Cos Cosh CumSum DFT DepthToSpace DequantizeLinear Div Einsum Elu Equal Erf Exp Expand Flatten Floor
    Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GridSample
    HardSigmoid HardSwish If InstanceNormalization LayerNormalization LeakyRelu Less LessOrEqual Log MatMul MaxPool
    MemcpyFromHost MemcpyToHost Mul Neg Not Pad Pow Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
    ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize ScatterND Shape Sigmoid
    SimplifiedLayerNormalization Sin Sinh Slice Softmax Split Sqrt Squeeze Sub Tan Tanh ThresholdedRelu Tile Transpose
    Unsqueeze Where
    """
)
MICROSOFT = operators(
    """
    Attention BiasAdd BiasSplitGelu FastGelu FusedConv GatherBlockQuantized Gelu GroupQueryAttention MatMulNBits
    MultiHeadAttention QuickGelu RotaryEmbedding SkipLayerNormalization SkipSimplifiedLayerNormalization
    """
)


class UnlistedOperator:
    """What it refutes: An operator that the package's own table of supported operators does not list.

    Why it holds: The package ships docs/webgpu-operators.md, written by its build from the kernels it registers.

    Example: `FusedMatMul`, which the graphs that qbpass writes are made of.
    """

    name = "ort-web-jsep-operator"
    versions = VersionRange("1.24.1", "1.30.0")
    sources = (
        Source(
            "onnxruntime-web",
            "1.24.1, 1.25.1, 1.26.0, 1.27.0, 1.29.0 and 1.30.0",
            "docs/webgpu-operators.md",
            "Operators Support Table",
        ),
    )

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        listed = {"": ONNX, "com.microsoft": MICROSOFT}.get(descriptor.domain)
        if listed is None or descriptor.operator in listed:
            return None
        return FalseAnswer(
            "docs/webgpu-operators.md does not list it",
            {"absent": descriptor.label, "operators": len(listed)},
        )


BACKEND = Backend(
    name="ort-web-jsep",
    title="ONNX Runtime Web, WebGPU provider in JavaScript (JSEP)",
    project="onnxruntime-web",
    provider="JsExecutionProvider",
    default_version="1.30.0",
    aliases=("jsep", "ort-web", "JsExecutionProvider"),
    rules=(UnlistedOperator(),),
)
