"""What `qbpass support` asks of a backend about a MODEL: its own graph, and what query-to-batch makes of its sites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qbpass.models.session import SessionSpec

if TYPE_CHECKING:
    import onnx

    from qbpass.admission.backends.describe import Place
    from qbpass.admission.backends.descriptor import Descriptor
    from qbpass.admission.report import AdmissionReport, SiteReport
    from qbpass.models.decoder import Decoder

Emission = Literal["guarded", "active"]
Asks = Literal["onnx", "ggml"]

DEFAULT_QUERIES = 4


@dataclass(frozen=True)
class Asking:
    """The command's options. emission: of the rewritten graph that is described; spec: None asks about the file's own
    graph, which needs neither weights nor ONNX Runtime.
    """

    asks: Asks
    queries: int | None
    emission: Emission = "guarded"
    spec: SessionSpec | None = None
    progress: Callable[[str], None] = lambda text: None

    @property
    def rows(self) -> int:
        return DEFAULT_QUERIES if self.queries is None else self.queries


@dataclass(frozen=True)
class Questions:
    """Descriptors in the order of the graph, what they were made from, and what could not be asked."""

    descriptors: tuple[Descriptor, ...]
    details: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def questions_of(path: Path, asking: Asking) -> Questions:
    """Raises what load_graph, open_bundle and freeze raise."""
    from qbpass.models.loading import load_graph
    from qbpass.models_at import frozen_decoder
    from qbpass.rewrites.manifest import MANIFEST_FILE

    if (path / MANIFEST_FILE).is_file():
        return _of_bundle(path, asking)
    decoder = load_graph(path, "ignored" if asking.spec is None else "required")
    problems = decoder.interface.problems
    if problems:
        made = _of_decoder(decoder, asking, "as exported")
        made.notes.insert(
            0, f"asked as it is in the file, for it is no decoder that qbpass can run: {problems[0].code}"
        )
        return made
    if asking.spec is None:
        return _of_decoder(decoder, asking, "as exported")
    with frozen_decoder(path, asking.spec, asking.progress) as frozen:
        return _of_decoder(frozen, asking, f"frozen for {asking.spec.provider}")


def _of_decoder(decoder: Decoder, asking: Asking, state: str) -> Questions:
    from qbpass.admission.admit import admit

    report = admit(decoder)
    if asking.asks == "ggml":
        return _of_sites(report, asking, {"graph": state})
    descriptors = _describe(decoder.model, report, asking.rows)
    notes: list[str] = []
    refused = sum("qb" not in site.layouts for site in report.sites)
    if report.sites and not refused and not report.graph_diagnostics and not decoder.interface.problems:
        descriptors += _of_rewrite(decoder, report, asking)
    else:
        said = f"{refused} of {len(report.sites)} attentions are not admitted for it"
        notes.append(f"query-to-batch is not asked about: {said}")
    return Questions(descriptors, _details(report, asking, {"graph": state, "emission": asking.emission}), notes)


def _describe(model: onnx.ModelProto, report: AdmissionReport, queries: int) -> tuple[Descriptor, ...]:
    from qbpass.admission.backends.describe import by_output, describe

    sites = {output: site.name for site in report.sites for output in _outputs(site)}
    return describe(model, by_output(sites), queries)


def _outputs(report: SiteReport) -> tuple[str, ...]:
    """First outputs of the attention's own nodes; of one fused operator, its result."""
    if report.site is not None:
        return report.site.nodes.all()
    output = None if report.facts is None else report.facts.tensors.get("output")
    return () if output is None else (output,)


def _of_rewrite(decoder: Decoder, report: AdmissionReport, asking: Asking) -> tuple[Descriptor, ...]:
    """What the rewritten graph asks beyond the original: the nodes that a query-to-batch rewrite emits.

    Its form is the cheapest that plans take (rows for QK, a batch entry a query for AV); no trial is run.
    """
    from qbpass.admission.backends.describe import describe
    from qbpass.rewrites.apply import rewrite_graph
    from qbpass.rewrites.plan import RewritePlan, SiteForm, SitePlan

    read = (entry.site or entry.lowered for entry in report.sites)
    sites = tuple(SitePlan(site, SiteForm()) for site in read if site is not None)
    plan = RewritePlan("qb", 2, asking.rows, sites)
    return describe(rewrite_graph(decoder, plan, asking.emission), _emitted, asking.rows)


def _emitted(node: onnx.NodeProto) -> Place | None:
    """Only nodes that a rewrite emitted (their names start with qbpass/), with the site they are tagged with."""
    from qbpass.rewrites.tags import PREFIX

    if not node.name.startswith("qbpass/"):
        return None
    return next((entry.value for entry in node.metadata_props if entry.key == f"{PREFIX}site"), None), "qb"


def _of_bundle(path: Path, asking: Asking) -> Questions:
    """A bundle's own graphs as they were written, or, for ggml, the sites of its reference."""
    import onnx

    from qbpass.admission.admit import admit
    from qbpass.admission.backends.describe import describe
    from qbpass.rewrites.bundle import open_bundle

    bundle = open_bundle(path)
    manifest = bundle.manifest
    report = admit(bundle.reference)
    if asking.asks == "ggml":
        return _of_sites(report, asking, {"graph": "bundle"})
    names = tuple(sorted(name for name in manifest.files if name.startswith("decoder.")))
    rows = manifest.max_queries if asking.queries is None else asking.queries
    described = [describe(onnx.ModelProto.FromString(bundle.graph(name)), _of_bundle_node, rows) for name in names]
    details = {"graph": "bundle", "files": list(names), "emission": manifest.emission, "layout": manifest.layout}
    found = tuple(dict.fromkeys(descriptor for part in described for descriptor in part))
    return Questions(found, _details(report, asking, details) | {"queries": rows})


def _of_bundle_node(node: onnx.NodeProto) -> Place:
    return _emitted(node) or (None, "graph")


def _of_sites(report: AdmissionReport, asking: Asking, details: dict[str, Any]) -> Questions:
    from qbpass.admission.backends.ggml_descriptors import query_to_batch_products

    products = tuple(d for site in report.sites for d in query_to_batch_products(site, asking.rows))
    notes = [] if products else ["no attention whose heads are known: nothing to ask of ggml"]
    return Questions(products, _details(report, asking, details), notes)


def _details(report: AdmissionReport, asking: Asking, details: dict[str, Any]) -> dict[str, Any]:
    sites = {"found": len(report.sites), "admitted": sum(site.admitted for site in report.sites)}
    return {"model": report.model, "queries": asking.rows, "attentions": sites, **details}
