"""What ONNX Runtime's GroupQueryAttention refuses when it runs, for the providers whose kernels share the check."""

from __future__ import annotations

from dataclasses import dataclass

from qbpass.admission.backends.answers import FalseAnswer
from qbpass.admission.backends.descriptor import Descriptor
from qbpass.admission.backends.rule import Source, Target
from qbpass.admission.backends.versions import VersionRange

# Operands of com.microsoft GroupQueryAttention, in its schema's order.
PAST_KEY, ATTENTION_BIAS, HEAD_SINK, Q_NORM, K_NORM = 3, 10, 11, 14, 15


def is_group_query(descriptor: Descriptor) -> bool:
    return (descriptor.domain, descriptor.operator) == ("com.microsoft", "GroupQueryAttention")


@dataclass(frozen=True)
class GroupQueryBatch:
    """What it refutes: `GroupQueryAttention` over several streams with several rows each behind a past.

    Why it holds: The kernel's check of its inputs returns INVALID_ARGUMENT where there are several streams, more rows
    than one, and a past. So its queries can't be moved to the batch axis of a call that verifies them together, nor can
    several streams be verified in one call.

    Example: query (2, 4, 576) with past_key (2, 3, past, 64), in a call of four rows behind a past.
    """

    name: str
    versions: VersionRange | None
    sources: tuple[Source, ...]

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        query, past = descriptor.input(0), descriptor.input(PAST_KEY)
        if not is_group_query(descriptor) or query is None or past is None or (descriptor.queries or 1) < 2:
            return None
        batch = (query.shape or (None,))[0]
        if not isinstance(batch, int) or batch < 2:
            return None
        return FalseAnswer(
            f"a call of {descriptor.queries} rows behind a past is taken for one stream alone; here there are {batch}",
            {
                "batch": batch,
                "queries": descriptor.queries,
                "message": "batch_size must be 1 when sequence_length > 1 and past context is given.",
            },
        )


@dataclass(frozen=True)
class GroupQueryGeometry:
    """What it refutes: `GroupQueryAttention` whose head dimension is no multiple of 8, or whose query heads are no
    multiple of its KV heads.

    Why it holds: The kernel's check of its inputs returns INVALID_ARGUMENT for both.

    Example: past_key (1, 2, past, 12); num_heads 5 with kv_num_heads 2.
    """

    name: str
    versions: VersionRange | None
    sources: tuple[Source, ...]

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        if not is_group_query(descriptor):
            return None
        heads, kv_heads = descriptor.attribute("num_heads"), descriptor.attribute("kv_num_heads")
        if isinstance(heads, int) and isinstance(kv_heads, int) and kv_heads > 0 and heads % kv_heads:
            return FalseAnswer(
                f"{heads} query heads are no multiple of {kv_heads} KV heads",
                {"heads": heads, "kv_heads": kv_heads, "message": "num_heads must be a multiple of kv_num_heads."},
            )
        width = _head_dim(descriptor)
        if width is not None and width % 8:
            return FalseAnswer(
                f"the head dimension {width} is no multiple of 8",
                {"head_dim": width, "message": "head_size must be a multiple of 8."},
            )
        return None


def _head_dim(descriptor: Descriptor) -> int | None:
    """The last axis of an unquantized past; quantized ones pack several numbers into one."""
    past = descriptor.input(PAST_KEY)
    if past is None or past.shape is None or len(past.shape) != 4 or past.elem_type not in _FLOATS:
        return None
    return past.shape[3] if isinstance(past.shape[3], int) else None


_FLOATS = frozenset({"tensor(float)", "tensor(float16)", "tensor(bfloat16)"})
