"""Speculative decoding for ONNX decoders that returns the serial output bit for bit.

Every public name is imported on first use: `import qbpass` itself loads no room, no onnx and no ONNX Runtime.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "AdaptivePolicy": "qbpass.runtime.drafting.adaptive",
    "AdmissionReport": "qbpass.admission.report",
    "AttentionSite": "qbpass.admission.site",
    "BlockTarget": "qbpass.runtime.block_target",
    "Bundle": "qbpass.rewrites.bundle",
    "Decoder": "qbpass.models.decoder",
    "Diagnostic": "qbpass.admission.report",
    "Endpoint": "qbpass.runtime.endpoint",
    "Engine": "qbpass.runtime.engine",
    "HFProcessor": "qbpass.runtime.sampling.hf_processor",
    "NgramDrafter": "qbpass.runtime.drafting.ngram",
    "Phase": "qbpass.rewrites.phases",
    "QbpassError": "qbpass.models.errors",
    "QualificationReport": "qbpass.evidence.report",
    "QualifyOptions": "qbpass.evidence.options",
    "Recipe": "qbpass.models.recipe",
    "Request": "qbpass.runtime.engine",
    "RewritePlan": "qbpass.rewrites.plan",
    "RewriteRefused": "qbpass.rewrites.planner",
    "Sampling": "qbpass.runtime.sampling.settings",
    "SerialTarget": "qbpass.runtime.serial_target",
    "SessionSpec": "qbpass.models.session",
    "SuffixDrafter": "qbpass.runtime.drafting.suffix",
    "TextCodec": "qbpass.models.tokenizer",
    "Trace": "qbpass.runtime.trace",
    "admit": "qbpass.admission.admit",
    "check_recipe": "qbpass.rewrites.bundle",
    "export_source": "qbpass.models.export.source",
    "freeze": "qbpass.models.freeze",
    "load_decoder": "qbpass.models.loading",
    "make_plan": "qbpass.rewrites.planner",
    "open_bundle": "qbpass.rewrites.bundle",
    "open_target": "qbpass.runtime.open_target",
    "qualify": "qbpass.evidence.qualify",
    "write_bundle": "qbpass.rewrites.bundle_writer",
}

if TYPE_CHECKING:
    from qbpass.admission.admit import admit
    from qbpass.admission.report import AdmissionReport, Diagnostic
    from qbpass.admission.site import AttentionSite
    from qbpass.evidence.options import QualifyOptions
    from qbpass.evidence.qualify import qualify
    from qbpass.evidence.report import QualificationReport
    from qbpass.models.decoder import Decoder
    from qbpass.models.errors import QbpassError
    from qbpass.models.export.source import export_source
    from qbpass.models.freeze import freeze
    from qbpass.models.loading import load_decoder
    from qbpass.models.recipe import Recipe
    from qbpass.models.session import SessionSpec
    from qbpass.models.tokenizer import TextCodec
    from qbpass.rewrites.bundle import Bundle, check_recipe, open_bundle
    from qbpass.rewrites.bundle_writer import write_bundle
    from qbpass.rewrites.phases import Phase
    from qbpass.rewrites.plan import RewritePlan
    from qbpass.rewrites.planner import RewriteRefused, make_plan
    from qbpass.runtime.block_target import BlockTarget
    from qbpass.runtime.drafting.adaptive import AdaptivePolicy
    from qbpass.runtime.drafting.ngram import NgramDrafter
    from qbpass.runtime.drafting.suffix import SuffixDrafter
    from qbpass.runtime.endpoint import Endpoint
    from qbpass.runtime.engine import Engine, Request
    from qbpass.runtime.open_target import open_target
    from qbpass.runtime.sampling.hf_processor import HFProcessor
    from qbpass.runtime.sampling.settings import Sampling
    from qbpass.runtime.serial_target import SerialTarget
    from qbpass.runtime.trace import Trace

__all__ = [
    "AdaptivePolicy",
    "AdmissionReport",
    "AttentionSite",
    "BlockTarget",
    "Bundle",
    "Decoder",
    "Diagnostic",
    "Endpoint",
    "Engine",
    "HFProcessor",
    "NgramDrafter",
    "Phase",
    "QbpassError",
    "QualificationReport",
    "QualifyOptions",
    "Recipe",
    "Request",
    "RewritePlan",
    "RewriteRefused",
    "Sampling",
    "SerialTarget",
    "SessionSpec",
    "SuffixDrafter",
    "TextCodec",
    "Trace",
    "__version__",
    "admit",
    "check_recipe",
    "export_source",
    "freeze",
    "load_decoder",
    "make_plan",
    "open_bundle",
    "open_target",
    "qualify",
    "write_bundle",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'qbpass' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
