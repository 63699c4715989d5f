"""ONNX Runtime's CPU provider."""

from __future__ import annotations

from qbpass.admission.backends.answers import FalseAnswer
from qbpass.admission.backends.descriptor import Descriptor
from qbpass.admission.backends.group_query import K_NORM, Q_NORM, GroupQueryBatch, GroupQueryGeometry, is_group_query
from qbpass.admission.backends.kernel_rule import KERNEL_REGISTRATION
from qbpass.admission.backends.rule import Backend, Source, Target
from qbpass.admission.backends.versions import VersionRange

# Each release between the two was asked: its wheel holds the messages, and 1.24.1, 1.26.0, 1.29.0, 1.30.0 and 1.32.0
# gave them when run.
_READ = VersionRange("1.24.1", "1.32.0")
_HELPER = "onnxruntime/contrib_ops/cpu/bert/group_query_attention_helper.h"


class GroupQueryNorms:
    """What it refutes: `GroupQueryAttention` with the inputs q_norm_weight or k_norm_weight.

    Why it holds: The CPU kernel returns INVALID_ARGUMENT where they are given: the normalisation of queries and keys
    in front of the attention is implemented for CUDA and WebGPU alone.

    Example: A Qwen3 decoder whose q/k norms were fused into GroupQueryAttention for CUDA.
    """

    name = "ort-cpu-gqa-qk-norm"
    versions = VersionRange("1.28.0", "1.32.0")
    sources = (
        Source(
            "onnxruntime",
            "1.28.0 to 1.32.0, each release",
            "onnxruntime/contrib_ops/cpu/bert/group_query_attention.cc",
            "message: GroupQueryAttention (CPU): q_norm_weight / k_norm_weight inputs are not supported.",
        ),
    )

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        if not is_group_query(descriptor) or not (descriptor.input(Q_NORM) or descriptor.input(K_NORM)):
            return None
        return FalseAnswer(
            "the CPU kernel takes no q_norm_weight or k_norm_weight",
            {"message": "GroupQueryAttention (CPU): q_norm_weight / k_norm_weight inputs are not supported."},
        )


BACKEND = Backend(
    name="ort-cpu",
    title="ONNX Runtime, CPU provider",
    project="onnxruntime",
    provider="CPUExecutionProvider",
    default_version="1.32.0",
    aliases=("cpu", "CPUExecutionProvider"),
    rules=(
        KERNEL_REGISTRATION,
        GroupQueryBatch(
            "ort-cpu-gqa-batch",
            _READ,
            (Source("onnxruntime", "1.24.1 to 1.32.0, each release", _HELPER, "message: batch_size must be 1 when"),),
        ),
        GroupQueryGeometry(
            "ort-cpu-gqa-geometry",
            _READ,
            (
                Source("onnxruntime", "1.24.1 to 1.32.0, each release", _HELPER, "message: must be a multiple of 8"),
                Source("onnxruntime", "1.24.1 to 1.32.0, each release", _HELPER, "message: multiple of kv_num_heads"),
            ),
        ),
        GroupQueryNorms(),
    ),
)
