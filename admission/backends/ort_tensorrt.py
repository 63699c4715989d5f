"""ONNX Runtime's TensorRT provider: what TensorRT's ONNX parser can't read."""

from __future__ import annotations

from collections.abc import Iterator

from qbpass.admission.backends.answers import FalseAnswer
from qbpass.admission.backends.descriptor import Descriptor
from qbpass.admission.backends.rule import Backend, Source, Target, operators
from qbpass.admission.backends.versions import VersionRange

_READ = VersionRange("10.15", "10.15")
_MATRIX = Source(
    "onnx-tensorrt", "10.15", "docs/operators.md", "Operator Support Matrix, `TensorRT 10.15 supports operators in"
)

# Rows of the matrix whose column Supported is Y.
SUPPORTED = operators(
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool BatchNormalization BlackmanWindow
    Cast CastLike Ceil Celu Clip Concat Constant ConstantOfShape Conv ConvTranspose Cos Cosh CumSum DeformConv
    DepthToSpace DequantizeLinear Div Dropout Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU Gather
    GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample
    GroupNormalization HammingWindow HannWindow HardSigmoid HardSwish Hardmax Identity If ImageScaler
    InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax Loop
    LpNormalization LpPool MatMul Max MaxPool Mean MeanVarianceNormalization Min Mish Mod Mul Neg NonMaxSuppression
    NonZero Not OneHot Or PRelu Pad ParametricSoftplus Pow QuantizeLinear RMSNormalization RNN RandomNormal
    RandomNormalLike RandomUniform RandomUniformLike Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
    ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize ReverseSequence RoiAlign
    RotaryEmbedding Round STFT ScaledTanh Scan Scatter ScatterElements ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh
    Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh TensorScatter ThresholdedRelu
    Tile TopK Transpose Trilu Unsqueeze Upsample Where Xor
    """
)
# Rows whose column Supported is N.
REFUSED = operators(
    """
    AffineGrid Bernoulli BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CenterCropPad Col2Im Compress
    ConcatFromSequence ConvInteger DFT Det DynamicQuantizeLinear ImageDecoder MatMulInteger MaxRoiPool MaxUnpool
    MelWeightMatrix Multinomial NegativeLogLikelihoodLoss Optional OptionalGetElement OptionalHasElement QLinearConv
    QLinearMatMul RegexFullMatch SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength
    SequenceMap SoftmaxCrossEntropyLoss SplitToSequence StringConcat StringNormalizer StringSplit TfIdfVectorizer Unique
    """
)


class UnsupportedOperator:
    """What it refutes: An operator that the parser's support matrix marks with N, or has no row for.

    Why it holds: The provider gives TensorRT only what its ONNX parser can read. The parser finds an importer by the
    operator's name; where it has none, it looks for a plugin of that name, which the user would have to bring.

    Example: `FusedMatMul`, `GroupQueryAttention` and `MatMulNBits` of com.microsoft; `MatMulInteger`.
    """

    name = "ort-tensorrt-operator"
    versions = _READ
    sources = (_MATRIX,)

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        if descriptor.operator in SUPPORTED or descriptor.domain not in ("", "com.microsoft"):
            return None
        refused = descriptor.operator in REFUSED
        return FalseAnswer(
            "the parser's support matrix marks it as not supported"
            if refused
            else "the parser's support matrix has no row for it",
            {"row": f"| {descriptor.operator} | N |" if refused else None, "rows": len(SUPPORTED) + len(REFUSED)},
        )


class AttentionRestriction:
    """What it refutes: ONNX's `Attention` with a past, presents, nonpad_kv_seqlen, a softcap, a qk_matmul_output, or
    queries, keys or values that are not 4-D.

    Why it holds: The support matrix names each of these as unsupported.

    Example: A decoder exported at opset 23, whose Attention takes past_key and past_value.
    """

    name = "ort-tensorrt-attention"
    versions = _READ
    sources = (_MATRIX,)

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        if descriptor.domain or descriptor.operator != "Attention":
            return None
        found = list(_restrictions(descriptor))
        return FalseAnswer(f"{', '.join(found)} of Attention: unsupported", {"unsupported": found}) if found else None


def _restrictions(descriptor: Descriptor) -> Iterator[str]:
    """Operands: Q K V attn_mask past_key past_value nonpad_kv_seqlen; results: Y present_key present_value qk."""
    for index, name in ((4, "past_key"), (5, "past_value"), (6, "nonpad_kv_seqlen")):
        if descriptor.input(index) is not None:
            yield name
    for index, name in ((1, "present_key"), (2, "present_value"), (3, "qk_matmul_output")):
        if index < len(descriptor.outputs) and descriptor.outputs[index] is not None:
            yield name
    if descriptor.attribute("softcap", 0.0):
        yield "softcap"
    for index, name in ((0, "Q"), (1, "K"), (2, "V"), (3, "attn_mask")):
        operand = descriptor.input(index)
        if operand is not None and operand.shape is not None and len(operand.shape) != 4:
            yield f"{len(operand.shape)}-D {name}"


class ScatterRestriction:
    """What it refutes: `ScatterND` with a reduction, and `TensorScatter` along another axis than -2 or of a cache that
    is not 4-D.

    Why it holds: The support matrix names each of these as unsupported.

    Example: TensorScatter(axis=1) into a sequence-major cache.
    """

    name = "ort-tensorrt-scatter"
    versions = _READ
    sources = (_MATRIX,)

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        if descriptor.domain:
            return None
        if descriptor.operator == "ScatterND" and descriptor.attribute("reduction", "none") != "none":
            reduction = descriptor.attribute("reduction")
            return FalseAnswer(f"ScatterND with reduction {reduction}: unsupported", {"reduction": reduction})
        if descriptor.operator != "TensorScatter":
            return None
        axis, cache = descriptor.attribute("axis", -2), descriptor.input(0)
        rank = len(cache.shape) if cache is not None and cache.shape is not None else 4
        if axis not in (-2, rank - 2) or rank != 4:
            return FalseAnswer(
                f"TensorScatter along axis {axis} of {rank} dimensions: unsupported", {"axis": axis, "rank": rank}
            )
        return None


BACKEND = Backend(
    name="ort-tensorrt",
    title="ONNX Runtime, TensorRT provider",
    project="TensorRT",
    provider="TensorrtExecutionProvider",
    default_version="10.15",
    aliases=("tensorrt", "trt", "TensorrtExecutionProvider"),
    rules=(UnsupportedOperator(), AttentionRestriction(), ScatterRestriction()),
)
