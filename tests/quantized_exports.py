"""The tiny export, quantized by ONNX Runtime's own quantizers, and bundles of it."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import onnx
from decoder_blocks import SPEC

from qbpass.admission.admit import admit
from qbpass.admission.dataflow import Flow
from qbpass.models.loading import load_decoder
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.rewrites.plan import RewritePlan


def weight_only(export: Path, folder: Path, bits: int, block: int, level: int, *, graph: Path | None = None) -> Path:
    """MatMulNBits in place of every product with constant weights. graph: another than the export's own."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(
        onnx.load(str(graph or export / "model.onnx")),
        block_size=block,
        is_symmetric=True,
        accuracy_level=level,
        bits=bits,
    )
    quantizer.process()
    _beside(export, folder)
    onnx.save(quantizer.model.model, str(folder / "model.onnx"))
    return folder


def dynamic(export: Path, folder: Path) -> Path:
    """int8 weights and activations, each activation by one scale for the whole tensor."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    _beside(export, folder)
    quantize_dynamic(str(export / "model.onnx"), str(folder / "model.onnx"), weight_type=QuantType.QInt8)
    return folder


def written(export: Path, folder: Path, **options: object) -> tuple[Bundle, RewritePlan]:
    """A QB bundle for two threads, with the plan it was written from."""
    bundle, plan, _ = write_bundle(load_decoder(export), folder, "qb", SPEC, **options)  # type: ignore[arg-type]
    return bundle, plan


@cache
def _nodes_of(folder: Path, graph: str) -> tuple[onnx.NodeProto, ...]:
    return tuple(onnx.load(str(folder / graph), load_external_data=False).graph.node)


def operators(bundle: Bundle, operator: str, graph: str = "decoder.onnx") -> list[onnx.NodeProto]:
    return [node for node in _nodes_of(bundle.folder, graph) if node.op_type == operator]


def flow_and_attention(bundle: Bundle) -> tuple[Flow, frozenset[str]]:
    """The reference's dataflow, and the names of its attentions' nodes."""
    sites = [entry.site for entry in admit(bundle.reference).sites if entry.site is not None]
    return Flow.of(bundle.reference), frozenset(name for site in sites for name in site.nodes.all())


def _beside(export: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    for path in export.iterdir():
        if not path.name.startswith("model.onnx"):
            shutil.copyfile(path, folder / path.name)
