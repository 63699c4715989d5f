"""What a site check looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import onnx

from qbpass.admission.dataflow import Flow, Shape
from qbpass.admission.report import Diagnostic
from qbpass.admission.site import AttentionSite


@dataclass(frozen=True)
class Subject:
    """One site, the dataflow it lies in, and every site of the decoder (this one included)."""

    site: AttentionSite
    flow: Flow
    sites: tuple[AttentionSite, ...]

    def shape(self, tensor: str) -> Shape | None:
        return self.flow.shape(tensor)

    @cached_property
    def qk(self) -> onnx.NodeProto:
        return self.flow.node(self.site.nodes.qk)

    @cached_property
    def av(self) -> onnx.NodeProto:
        return self.flow.node(self.site.nodes.av)

    @cached_property
    def score_path(self) -> list[onnx.NodeProto]:
        return [self.flow.node(name) for name in self.site.nodes.score_path]

    @cached_property
    def prob_path(self) -> list[onnx.NodeProto]:
        return [self.flow.node(name) for name in self.site.nodes.prob_path]

    @cached_property
    def added_terms(self) -> list[str]:
        """Every tensor that an Add of the score path adds to the scores, in order."""
        scores = {self.qk.output[0], *(output for node in self.score_path for output in node.output)}
        adds = (node for node in self.score_path if node.op_type == "Add")
        return [tensor for node in adds for tensor in node.input if tensor not in scores]

    def refuse(self, code: str, message: str, **evidence: Any) -> Diagnostic:
        return Diagnostic(code, self.site.name, message, dict(evidence))

    def listed(self, *tensors: str | None) -> Mapping[str, list[int | str | None] | None]:
        """Shapes of tensors in a form that JSON holds."""
        return {t: None if (shape := self.shape(t)) is None else list(shape) for t in tensors if t is not None}
