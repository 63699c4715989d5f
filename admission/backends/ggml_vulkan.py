"""ggml's Vulkan backend: the frozen predicate of Phase-Scoped Query Layouts, section S6.3."""

from __future__ import annotations

from qbpass.admission.backends.answers import FalseAnswer
from qbpass.admission.backends.descriptor import Descriptor
from qbpass.admission.backends.ggml_descriptors import GGML
from qbpass.admission.backends.rule import Backend, Source, Target
from qbpass.admission.backends.versions import VersionRange

_FILE = "ggml/src/ggml-vulkan/ggml-vulkan.cpp"
_PLACE = "ggml_backend_vk_device_supports_op, case GGML_OP_MUL_MAT: if (a->ne[3] != b->ne[3]) return false;"


class FourthExtents:
    """What it refutes: `mul_mat` of sources whose fourth extents differ.

    Why it holds: The backend's support predicate returns false for them. Query-to-batch attention puts the queries on
    the fourth axis of Q and of the probabilities, while K and V are one stream: 1 against q. Equal extents say nothing:
    they are a necessary condition of the predicate, not the whole of it.

    Example: At two queries, K (64, n, 3, 1) and Q (64, 1, 9, 2).
    """

    name = "ggml-vulkan-fourth-extents"
    versions = VersionRange("0.9.8", "0.25.3")
    sources = (
        Source("Phase-Scoped Query Layouts", "S6.3", "Version-bound support semantics"),
        Source("ggml-org/llama.cpp", "0c1e57098 (ggml 0.25.3)", f"{_FILE}:15432", _PLACE),
        Source("ggml-org/llama.cpp", "4df29be4f (ggml 0.20.0)", f"{_FILE}:18061", _PLACE),
        Source("ggml-org/llama.cpp", "e3546c794 (ggml 0.16.0)", f"{_FILE}:17291", _PLACE),
        Source("ggml-org/llama.cpp", "af6528e6d (ggml 0.13.1)", f"{_FILE}:16432", _PLACE),
        Source("ggml-org/llama.cpp", "49bfddeca18e62fa3d39114a23e9fcbdf8a22388 (ggml 0.9.8)", f"{_FILE}:15274", _PLACE),
    )

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        if (descriptor.domain, descriptor.operator) != (GGML, "mul_mat"):
            return None
        extents = [
            operand.shape[3] if operand is not None and operand.shape is not None and len(operand.shape) == 4 else None
            for operand in descriptor.inputs[:2]
        ]
        if len(extents) < 2 or not all(isinstance(extent, int) for extent in extents) or extents[0] == extents[1]:
            return None
        return FalseAnswer(
            f"the sources of {descriptor.attribute('role', 'mul_mat')} have the fourth extents {extents[0]} and "
            f"{extents[1]}",
            {
                "fourth_extents": extents,
                "sources": [None if operand is None else operand.to_json() for operand in descriptor.inputs[:2]],
                "predicate": "a->ne[3] != b->ne[3]",
            },
        )


BACKEND = Backend(
    name="ggml-vulkan",
    title="ggml, Vulkan backend",
    project="ggml",
    default_version="0.25.3",
    aliases=("vulkan",),
    asks="ggml",
    rules=(FourthExtents(),),
)
