"""The three shapes attention can have in an export, and the opset each is written at."""

from __future__ import annotations

from dataclasses import dataclass

from qbpass.models.errors import ExportError


@dataclass(frozen=True)
class AttentionForm:
    """One way to write attention.

    name: what the user asks for; implementation: what transformers calls it; opset: the default; lowest, highest: the
    opsets the form can be written at (None: no bound). At 23 the exporter would write `sdpa` as an Attention node.
    """

    name: str
    implementation: str
    opset: int
    lowest: int
    highest: int | None


FORMS = {
    form.name: form
    for form in (
        AttentionForm("eager", "eager", opset=18, lowest=18, highest=None),  # matmul, mask, softmax, matmul
        AttentionForm(
            "sdpa", "sdpa", opset=20, lowest=18, highest=22
        ),  # torch's decomposition: scales the query and the key
        AttentionForm("onnx", "sdpa", opset=23, lowest=23, highest=None),  # one Attention node a layer
    )
}


def attention_form(name: str) -> AttentionForm:
    """The form called `name`. Raises ExportError for any other name."""
    if name not in FORMS:
        raise ExportError(f"unknown attention {name!r}: choose one of {', '.join(FORMS)}")
    return FORMS[name]


def checked_opset(form: AttentionForm, opset: int | None) -> int:
    """`opset`, or the form's default. Raises ExportError where the form can't be written at it."""
    if opset is None:
        return form.opset
    if opset < form.lowest:
        raise ExportError(f"--attention {form.name} needs opset {form.lowest} or later, not {opset}")
    if form.highest is not None and opset > form.highest:
        raise ExportError(
            f"--attention {form.name} is written at opset {form.highest} at most, not {opset}: use --attention onnx"
        )
    return opset
