"""The JSON of `qbpass admit`. Its schema is made of these models (schema.py) and ships as schemas/admit.json."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from qbpass import __version__
from qbpass.reports.plain import plain

if TYPE_CHECKING:
    from qbpass.admission.report import AdmissionReport
    from qbpass.models.decoder import Decoder
    from qbpass.models.interface import Interface
    from qbpass.reports.looked_at import LookedAt


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DiagnosticDocument(_Frozen):
    """Why something is refused. What a code means is in docs/admission-codes.md, and never changes."""

    code: str = Field(pattern=r"^[A-Z][A-Z0-9_]*$")
    message: str
    evidence: dict[str, Any] = Field(description="Names of nodes and tensors, shapes, numbers: what decided.")


class TensorDocument(_Frozen):
    """A node is named by its first output tensor, so a tensor's name also names its maker."""

    name: str
    shape: list[int | str | None] | None = Field(
        description="A number, a sum of `past` and `queries`, or null where unknown; null altogether: rank unknown."
    )
    dtype: str | None


class FactsDocument(_Frozen):
    """What is known of an attention, refused or not; null where the graph does not say."""

    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    value_dim: int | None
    scale: float | None = Field(description="The product of every constant factor on the scores.")
    tensors: dict[str, TensorDocument] = Field(description="By part: q, k, v, mask, past_key, output, ...")
    features: dict[str, Any] = Field(description="What a fused operator's attributes turn on.")


class SiteDocument(_Frozen):
    name: str
    kind: str = Field(description="decomposed, onnx_attention, gqa, mha, ...; new kinds may come.")
    layer: int = Field(ge=-1, description="-1: of no layer.")
    admitted: bool
    layouts: list[str] = Field(
        default=[], description="That nothing is said against. Diagnostics beside one say why the others are out."
    )
    diagnostics: list[DiagnosticDocument]
    facts: FactsDocument | None


class CachePairDocument(_Frozen):
    """One layer's KV cache; null for what the graph does not have or say."""

    layer: int
    past_key: str | None
    past_value: str | None
    present_key: str | None
    present_value: str | None
    kv_heads: int | None
    key_dim: int | None
    value_dim: int | None
    dtype: str | None


class CrossDocument(_Frozen):
    """Keys and values of another stream."""

    layer: int
    key: str | None
    value: str | None


class StateDocument(_Frozen):
    """A state that each call takes and gives anew: no rows, so no rollback."""

    past: str
    present: str
    rank: int | None


class InterfaceDocument(_Frozen):
    """The graph's inputs and outputs by their part in decoding, found by dataflow."""

    input_ids: TensorDocument | None
    attention_mask: TensorDocument | None
    position_ids: TensorDocument | None
    logits: TensorDocument | None
    vocab_size: int | None
    kv: list[CachePairDocument]
    cross_kv: list[CrossDocument]
    states: list[StateDocument]
    others: list[TensorDocument] = Field(description="Inputs of no known part.")
    problems: list[DiagnosticDocument] = Field(description="Why the graph can't be run as a decoder, if it can't.")


class GraphDocument(_Frozen):
    """The graph that was looked at."""

    state: Literal["frozen", "as_exported"]
    onnxruntime: str | None = Field(description="The version whose optimizer left the graph; null: as exported.")
    provider: str | None


class AdmissionDocument(_Frozen):
    """`qbpass admit --json`. Fields may be added within a schema_version; none goes or changes its meaning."""

    schema_version: Literal[1]
    qbpass_version: str
    model: str
    graph: GraphDocument
    admitted: bool = Field(description="Every site is, and nothing is said against the whole graph.")
    diagnostics: list[DiagnosticDocument] = Field(description="Of the whole graph.")
    interface: InterfaceDocument
    sites: list[SiteDocument]

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


def admission_document(report: AdmissionReport, decoder: Decoder, looked_at: LookedAt) -> AdmissionDocument:
    """The report in its written form, with what is known of the graph's interface."""
    found = plain(report.to_json())
    for site in found["sites"]:
        _keep_numbers(site["facts"])
    return AdmissionDocument(
        schema_version=1,
        qbpass_version=__version__,
        model=looked_at.model,
        graph=GraphDocument(state=looked_at.state, onnxruntime=looked_at.onnxruntime, provider=looked_at.provider),
        admitted=report.admitted,
        diagnostics=found["diagnostics"],
        interface=interface_document(decoder),
        sites=found["sites"],
    )


def _keep_numbers(facts: dict[str, Any] | None) -> None:
    """A scale that is no number (a graph may multiply by infinity) is not known."""
    if facts is not None and not isinstance(facts["scale"], (int, float)):
        facts["scale"] = None


def interface_document(decoder: Decoder) -> InterfaceDocument:
    """Inputs and outputs by part, with the shapes that the file declares."""
    from qbpass.admission.facts import dtype_name

    found: Interface = decoder.interface
    declared = {value.name: value for value in (*decoder.model.graph.input, *decoder.model.graph.output)}

    def tensor(name: str) -> TensorDocument:
        return _declared(name, declared.get(name))

    def tensors(names: Iterable[str]) -> list[TensorDocument]:
        return [tensor(name) for name in names]

    named = {part: getattr(found, part) for part in ("input_ids", "attention_mask", "position_ids", "logits")}
    pairs = [
        {key: entry for key, entry in vars(pair).items() if key != "elem_type"}
        | {"dtype": dtype_name(pair.elem_type) if pair.elem_type else None}
        for pair in found.kv
    ]
    return InterfaceDocument(
        **{part: None if name is None else tensor(name) for part, name in named.items()},
        vocab_size=found.vocab_size,
        kv=[CachePairDocument(**pair) for pair in pairs],
        cross_kv=[CrossDocument(**vars(cross)) for cross in found.cross_kv],
        states=[StateDocument(**vars(state)) for state in found.states],
        others=tensors(found.others),
        problems=[DiagnosticDocument(**plain(vars(problem))) for problem in found.problems],
    )


def _declared(name: str, value: Any) -> TensorDocument:
    """As the file declares it: the exporter's own symbols."""
    from qbpass.admission.facts import dtype_name

    if value is None:
        return TensorDocument(name=name, shape=None, dtype=None)
    tensor = value.type.tensor_type
    shape: list[int | str | None] | None = None
    if tensor.HasField("shape"):
        shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]
    return TensorDocument(name=name, shape=shape, dtype=dtype_name(tensor.elem_type) if tensor.elem_type else None)
