"""An admission report as one page of HTML: no scripts, no fonts, nothing fetched; light and dark.

Written with jinja2, which escapes every text; names in it are those of a stranger's graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from qbpass import __version__
from qbpass.reports.admission_document import CachePairDocument, InterfaceDocument, interface_document
from qbpass.reports.groups import Cells, Group, grouped
from qbpass.reports.kinds import KINDS
from qbpass.reports.plain import visible
from qbpass.reports.refusals import evidence_lines, of_graph, refusals
from qbpass.reports.site_drawings import DRAWN, draw_groups

if TYPE_CHECKING:
    from qbpass.admission.dataflow import Flow
    from qbpass.admission.report import AdmissionReport
    from qbpass.models.decoder import Decoder
    from qbpass.reports.looked_at import LookedAt

ROWS, LISTED = 200, 400  # rows of the table; entries of a list that is folded away
_TEMPLATES = files("qbpass.reports") / "templates"

#: Columns of the site table that a page leaves out where no row has anything to say in them.
_COLUMNS: tuple[tuple[str, str, bool], ...] = (
    ("heads", "heads", True),
    ("KV heads", "kv_heads", True),
    ("d", "head_dim", True),
    ("dv", "value_dim", True),
    ("type", "dtypes", False),
    ("mask", "mask", False),
    ("scale", "scale", True),
)


def admission_page(report: AdmissionReport, decoder: Decoder, looked_at: LookedAt, flow: Flow | None = None) -> str:
    """The page's text. flow: the decoder's, where the caller has it."""
    from qbpass.admission.dataflow import Flow

    groups = grouped(report.sites)
    drawn = draw_groups(groups, flow or Flow.of(decoder))
    return (
        _environment()
        .get_template("admission.html")
        .render(
            css=Markup(_template("page.css")),
            version=__version__,
            model=visible(looked_at.model, 200),
            looked_at=looked_at,
            admitted=report.admitted,
            verdict=_verdict(report),
            columns=[entry for entry in _COLUMNS if any(getattr(group.cells, entry[1]) for group in groups)],
            rows=[_row(group) for group in groups[:ROWS]],
            rows_left_out=max(0, len(groups) - ROWS),
            kinds={kind: KINDS[kind] for group in groups if (kind := group.cells.kind) in KINDS},
            of_graph=of_graph(report.graph_diagnostics),
            refusals=refusals(groups),
            drawn=drawn,
            undrawn=max(0, len(groups) - DRAWN),
            interface=_interface(interface_document(decoder)),
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["with_code"] = _with_code
    environment.filters["known"] = lambda value: "?" if value is None else value
    return environment


def _with_code(text: str) -> Markup:
    """What stands between backticks as code."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(p) if at % 2 else escape(p) for at, p in enumerate(parts))


def _template(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _verdict(report: AdmissionReport) -> str:
    admitted, sites = sum(site.admitted for site in report.sites), len(report.sites)
    count = f"{admitted} of {sites} attention sites are admitted"
    if not sites:
        return "refused: no attention was found"
    if admitted < sites:
        return f"refused: {count}, and one refused site refuses the model"
    if report.graph_diagnostics:
        return f"refused: {count}, but the whole graph is not"
    return f"admitted: {admitted} of {sites} attention sites may be rewritten"


def _row(group: Group) -> dict[str, Any]:
    cells: Cells = group.cells
    facts = group.first.facts
    tensors = [] if facts is None else list(facts.tensors.items())[:LISTED]
    return {
        "label": group.label,
        "cells": cells,
        "first": visible(group.first.name, 80),
        "sites": [visible(site.name, 80) for site in group.sites[:LISTED]] if len(group.sites) > 1 else [],
        "sites_left_out": max(0, len(group.sites) - LISTED),
        "tensors": [
            (
                visible(part.replace("_", " "), 40),
                visible(name, 200),
                _shape(facts.shapes.get(name)),
                facts.dtypes.get(name, ""),
            )
            for part, name in tensors
            if facts is not None
        ],
        "features": [] if facts is None else evidence_lines(facts.features),
    }


def _shape(shape: Sequence[int | str | None] | None) -> str:
    return "" if shape is None else f"({', '.join('?' if dim is None else visible(str(dim), 60) for dim in shape)})"


def _interface(found: InterfaceDocument) -> dict[str, Any]:
    """Inputs and outputs by part; KV pairs that are alike in one row."""
    parts = ("input_ids", "attention_mask", "position_ids", "logits")
    named = [(part.replace("_", " "), tensor) for part in parts if (tensor := getattr(found, part)) is not None]
    named += [("no known part", tensor) for tensor in found.others[:LISTED]]
    alike: dict[tuple[Any, ...], list[CachePairDocument]] = {}
    for pair in found.kv:
        alike.setdefault((pair.kv_heads, pair.key_dim, pair.value_dim, pair.dtype), []).append(pair)
    return {
        "tensors": [(part, visible(t.name, 200), _shape(t.shape), t.dtype or "") for part, t in named],
        "others_left_out": max(0, len(found.others) - LISTED),
        "vocab_size": found.vocab_size,
        "kv": [_pairs(pairs) for pairs in list(alike.values())[:ROWS]],
        "cross": [
            (c.layer, *(visible(name or "–", 200) for name in (c.key, c.value))) for c in found.cross_kv[:LISTED]
        ],
        "states": [(visible(s.past, 200), visible(s.present, 200), s.rank) for s in found.states[:LISTED]],
    }


def _pairs(pairs: Sequence[CachePairDocument]) -> dict[str, Any]:
    names = ("past_key", "past_value", "present_key", "present_value")
    layers = [(p.layer, *(visible(getattr(p, name) or "–", 200) for name in names)) for p in pairs[:LISTED]]
    return {"first": pairs[0], "count": len(pairs), "layers": layers}
