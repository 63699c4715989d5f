"""What a reader found out about a fused operator: the facts of a report, and what its checks ask besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reading:
    """One fused operator, by its own schema. None where neither the node nor the shapes of its operands say.

    tensors: part -> tensor. features: what the node's attributes and optional operands turn on, under their own names.
    """

    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    scale: float | None = None
    tensors: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, Any] = field(default_factory=dict)
    causal: bool = False  # the operator itself keeps every query off later keys, whatever mask it is given
    from_first_key: bool = False  # it does so as if the past were empty: query i reads keys 0..i
    window: int | None = None  # the attribute that bounds how far back a query reads
    added: str | None = None  # part that is added to the scores; where it is boolean, keys that may be read
    key_mask: str | None = None  # part that says by integers which keys count
    rows: tuple[str, int] | None = None  # part and axis of the call's tokens
    other_rows: str | None = None  # why the operator's rows are not the call's tokens, where they are not
    batch: tuple[tuple[str, int], ...] = ()  # parts, each with the axis of its streams


def switched_on(**features: Any) -> dict[str, Any]:
    """The features that are on: not None, not False, 0, empty or "NONE"."""
    return {name: value for name, value in features.items() if value and value != "NONE"}


def score_scale(given: float | None, head_dim: int | None) -> float | None:
    """The factor on the scores. com.microsoft's operators take 0, too, for "left out": 1/sqrt(head dimension)."""
    if given:
        return given
    return None if head_dim is None or head_dim <= 0 else float(head_dim) ** -0.5
