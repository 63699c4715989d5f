"""ONNX Runtime's OpenVINO provider, as the package onnxruntime-openvino has it."""

from __future__ import annotations

from qbpass.admission.backends.answers import FalseAnswer
from qbpass.admission.backends.descriptor import Descriptor
from qbpass.admission.backends.rule import Backend, Source, Target, operators
from qbpass.admission.backends.versions import VersionRange

_READ = VersionRange("1.24.1", "1.24.1")
_PACKAGE = "onnxruntime-openvino"
_LIST = "onnxruntime/core/providers/openvino/ov_versions/data_ops.cc"

# Names of operators that libonnxruntime_providers_openvino.so 1.24.1 holds as strings. The provider takes a node only
# where its table of supported operators names it; a name that the library does not hold can't be in the table.
NAMES = operators(
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool BatchNormalization BiasGelu
    BitShift Cast CastLike Ceil Celu Clip Compress Concat Constant ConstantOfShape Conv ConvInteger ConvTranspose Cos
    Cosh CumSum DepthToSpace DequantizeLinear Div Dropout DynamicQuantizeLinear DynamicQuantizeMatMul EPContext Einsum
    Elu EmbedLayerNormalization Equal Erf Exp Expand EyeLike Flatten Floor FusedConv FusedGemm FusedMatMul GRU Gather
    GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample
    GroupQueryAttention HardSigmoid HardSwish Identity If ImageScaler InstanceNormalization LRN LSTM
    LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax Loop LpNormalization LpPool MatMul MatMulInteger
    MatMulNBits Max MaxPool Mean MeanVarianceNormalization Min Mod Mul MulInteger Neg NonMaxSuppression NonZero Not
    OneHot Or PRelu Pad Pow QuantizeLinear QuickGelu RNN RandomNormal RandomNormalLike Range Reciprocal ReduceL1
    ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu
    Reshape Resize ReverseSequence RoiAlign Round Scatter ScatterElements ScatterND Selu Shape Shrink Sigmoid Sign
    SimplifiedLayerNormalization Sin Sinh Size SkipLayerNormalization SkipSimplifiedLayerNormalization Slice Softmax
    Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Swish Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu
    Unsqueeze Upsample Where Xor
    """
)


class UnlistedOperator:
    """What it refutes: An operator that the provider's table of supported operators does not name.

    Why it holds: The provider takes a node only where the table in data_ops.cc names its operator. Its library holds
    these names as strings, and an operator whose name is no string of it can't be in the table. Sessions over
    RMSNormalization, RotaryEmbedding, MultiHeadAttention, IsNaN, FastGelu, Hardmax and IsInf between two Relus left
    each of them to the CPU provider and took the rest.

    Example: `RMSNormalization` of opset 23; `TensorScatter`.
    """

    name = "ort-openvino-unlisted-operator"
    versions = _READ
    sources = (
        Source(_PACKAGE, "1.24.1", _LIST, "supported_op_mode"),
        Source(_PACKAGE, "1.24.1", "onnxruntime/capi/libonnxruntime_providers_openvino.so", "strings"),
    )

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        if descriptor.domain not in ("", "com.microsoft") or descriptor.operator in NAMES:
            return None
        return FalseAnswer(
            "the provider's table of supported operators does not name it",
            {"absent": descriptor.operator, "library": "libonnxruntime_providers_openvino.so", "names": len(NAMES)},
        )


class FrontendAttention:
    """What it refutes: ONNX's `Attention`.

    Why it holds: The provider takes it, and OpenVINO 2025.4.1, which the package holds, refuses the graph when it is
    compiled, so that no session is made.

    Example: A decoder exported at opset 23 with one Attention a layer.
    """

    name = "ort-openvino-attention"
    versions = _READ
    sources = (
        Source(
            _PACKAGE,
            "1.24.1",
            "openvino 2025.4.1, src/frontends/onnx/frontend/src/frontend.cpp",
            "message: OpenVINO does not support the following ONNX operations: Attention",
        ),
    )

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        if descriptor.domain or descriptor.operator != "Attention":
            return None
        return FalseAnswer(
            "no session is made of a graph with Attention",
            {"message": "OpenVINO does not support the following ONNX operations: Attention"},
        )


class TransposedBatch:
    """What it refutes: `FusedMatMul` with transBatchA or transBatchB.

    Why it holds: The provider takes the node and drops the attribute. Where the batches then disagree no session is
    made; where they agree by chance the result is another one. So the graphs that qbpass writes, which read K and V as
    they lie in the cache, can't run on it.

    Example: FusedMatMul(transB=1, transBatchB=1) of (2, 3, 8) and (5, 2, 8) fails; of (2, 3, 8) and (2, 2, 8) it
    differs from the CPU provider by 0.42.
    """

    name = "ort-openvino-transposed-batch"
    versions = _READ
    sources = (
        Source(
            _PACKAGE,
            "1.24.1",
            "openvino 2025.4.1, src/core/shape_inference/include/matmul_shape_inference.hpp:92",
            "message: Incompatible MatMul batch dimension. Can't merge first input dimension=2 with second input "
            "dimension=5",
        ),
    )

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        if (descriptor.domain, descriptor.operator) != ("com.microsoft", "FusedMatMul"):
            return None
        turned = [name for name in ("transBatchA", "transBatchB") if descriptor.attribute(name, 0)]
        if not turned:
            return None
        return FalseAnswer(
            f"the provider drops {' and '.join(turned)}",
            {
                "attributes": turned,
                "message": "Incompatible MatMul batch dimension.",
                "witness": "(2, 3, 8) and (2, 2, 8) with transB and transBatchB: 0.42 from the CPU provider's result",
            },
        )


BACKEND = Backend(
    name="ort-openvino",
    title="ONNX Runtime, OpenVINO provider",
    project="onnxruntime-openvino",
    provider="OpenVINOExecutionProvider",
    default_version="1.24.1",
    aliases=("openvino", "OpenVINOExecutionProvider"),
    rules=(UnlistedOperator(), FrontendAttention(), TransposedBatch()),
)
