"""ONNX Runtime's CUDA provider, without CUDA graphs."""

from __future__ import annotations

from qbpass.admission.backends.answers import FalseAnswer
from qbpass.admission.backends.descriptor import Descriptor
from qbpass.admission.backends.group_query import (
    ATTENTION_BIAS,
    HEAD_SINK,
    GroupQueryBatch,
    GroupQueryGeometry,
    is_group_query,
)
from qbpass.admission.backends.kernel_rule import KERNEL_REGISTRATION
from qbpass.admission.backends.rule import Backend, Source, SupportRule, Target
from qbpass.admission.backends.versions import VersionRange

# The messages are in libonnxruntime_providers_cuda.so of each onnxruntime-gpu release between the two.
_READ = VersionRange("1.24.1", "1.31.1")
_KERNEL = "onnxruntime/contrib_ops/cuda/bert/group_query_attention.cc"
_HELPER = "onnxruntime/contrib_ops/cpu/bert/group_query_attention_helper.h"


class GroupQueryBias:
    """What it refutes: `GroupQueryAttention` with the input attention_bias.

    Why it holds: The CUDA kernel returns INVALID_ARGUMENT wherever it is given.

    Example: An export of a model with left padding whose mask is wired into attention_bias.
    """

    name = "ort-cuda-gqa-bias"
    versions = VersionRange("1.24.1", "1.28.0")
    sources = (
        Source(
            "onnxruntime-gpu",
            "1.24.1 to 1.28.0, each release",
            _KERNEL,
            "message: attention_bias is not supported in GroupQueryAttention cuda kernel.",
        ),
    )

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        if not is_group_query(descriptor) or descriptor.input(ATTENTION_BIAS) is None:
            return None
        return FalseAnswer(
            "the CUDA kernel takes no attention_bias",
            {"message": "attention_bias is not supported in GroupQueryAttention cuda kernel."},
        )


class GroupQueryBiasWithSink:
    """What it refutes: `GroupQueryAttention` with attention_bias together with head_sink or smooth_softmax.

    Why it holds: The CUDA kernel returns NOT_IMPLEMENTED for the two together.

    Example: gpt-oss exported with sinks and with its sliding window as a bias.
    """

    name = "ort-cuda-gqa-bias-with-sink"
    versions = VersionRange("1.29.0", "1.31.1")
    sources = (
        Source(
            "onnxruntime-gpu",
            "1.29.0 to 1.31.1, each release",
            _KERNEL,
            "message: attention_bias with smooth softmax or head_sink is not implemented",
        ),
    )

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        if not is_group_query(descriptor) or descriptor.input(ATTENTION_BIAS) is None:
            return None
        smooth = descriptor.attribute("smooth_softmax", 0)
        if descriptor.input(HEAD_SINK) is None and smooth != 1:
            return None
        return FalseAnswer(
            "the CUDA kernel takes no attention_bias together with sinks",
            {"message": "attention_bias with smooth softmax or head_sink is not implemented"},
        )


#: What the provider refuses with or without CUDA graphs.
RULES: tuple[SupportRule, ...] = (
    KERNEL_REGISTRATION,
    GroupQueryBatch(
        "ort-cuda-gqa-batch",
        _READ,
        (Source("onnxruntime-gpu", "1.24.1 to 1.31.1, each release", _HELPER, "message: batch_size must be 1 when"),),
    ),
    GroupQueryGeometry(
        "ort-cuda-gqa-geometry",
        _READ,
        (
            Source("onnxruntime-gpu", "1.24.1 to 1.31.1, each release", _HELPER, "message: must be a multiple of 8"),
            Source("onnxruntime-gpu", "1.24.1 to 1.31.1, each release", _HELPER, "message: multiple of kv_num_heads"),
        ),
    ),
    GroupQueryBias(),
    GroupQueryBiasWithSink(),
)

BACKEND = Backend(
    name="ort-cuda",
    title="ONNX Runtime, CUDA provider",
    project="onnxruntime",
    provider="CUDAExecutionProvider",
    default_version="1.31.1",
    aliases=("cuda", "CUDAExecutionProvider"),
    rules=RULES,
)
