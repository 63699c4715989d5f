"""An attention site cut out of the frozen graph as it stands there: from q, present K/V and mask to the output."""

from __future__ import annotations

import onnx
import onnx_graphsurgeon as gs

from qbpass.admission.site import AttentionSite
from qbpass.models.decoder import Decoder
from qbpass.rewrites.kv_cache import numpy_dtype


def cut_native_site(frozen: Decoder, site: AttentionSite) -> onnx.ModelProto:
    """A model of `site` alone. Its K and V come in the export's own layout, so nothing of our cache is charged to it.

    Inputs: q (1, H, q, d), present K and V (1, Hkv, n, d), mask (1, 1, q, n) by the site's names, and those inputs of
    the decoder that the site's shapes are computed from. Output: (1, H, q, dv).
    """
    graph = gs.import_onnx(frozen.model)
    tensors = graph.tensors()
    operands = [tensors[name] for name in (site.q, site.k, site.v, site.mask) if name is not None]
    for tensor in operands:
        tensor.inputs.clear()
        tensor.dtype, tensor.shape = numpy_dtype(site.elem_type), None
    output = tensors[site.output]
    output.dtype, output.shape = numpy_dtype(site.elem_type), None
    graph.inputs = [*operands, *graph.inputs]
    graph.outputs = [output]
    graph.cleanup(remove_unused_graph_inputs=True).toposort()
    model: onnx.ModelProto = gs.export_onnx(graph, do_type_check=False)
    return model
