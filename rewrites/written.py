"""What a rewrite has made of a frozen decoder before anybody may use it, and what came of running it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx

from qbpass.models.decoder import Decoder
from qbpass.rewrites.apply import Emission
from qbpass.rewrites.plan import AnyLayout, RewritePlan


@dataclass(frozen=True)
class Written:
    """models: the graphs that will be run, by emission. prefill: how the reference reads its prompt. widths: those of
    calls of one number of rows (width_graphs.py).
    """

    frozen: Decoder
    plan: RewritePlan
    models: Mapping[Emission, onnx.ModelProto]
    prefill: str
    widths: Mapping[int, onnx.ModelProto] = field(default_factory=dict)


@dataclass(frozen=True)
class Tried:
    """evidence: verdict false, with a witness, or unknown. ratios: what a full call costs over the native call, for the
    plan's layout and for "gs" (choice.py); {} where nothing was timed.
    """

    evidence: Mapping[str, Any]
    ratios: Mapping[AnyLayout, float] = field(default_factory=dict)


#: Runs whole decoders against the reference; the flag asks for costs, too. The runtime has one (whole_trial.py).
Machine = Callable[[Written, bool], Tried]
