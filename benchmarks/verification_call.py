"""A whole verification call of a bundle behind about --past rows, averaged over four alignments of the past.

Forms: the reference's own one-row call (R), a block on the frozen graph (native), a block in the guarded
graph's native branch (guarded native), QB and PQ. Rows are compared, byte for byte, with the same rows decoded
one at a time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from measuring.claims import Claim, answer, show_claims
from measuring.script import parser, positive, run, spec_of

from qbpass.admission.probes.interleaved import Timings, interleave
from qbpass.evidence.arms import build_arms
from qbpass.evidence.options import QualifyOptions
from qbpass.models.errors import QbpassError
from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle, check_recipe, open_bundle
from qbpass.runtime.rewinding_target import RewindingTarget
from qbpass.runtime.target import Target
from qbpass.screen import Steps, table

ALIGNMENTS = 4


@dataclass(frozen=True)
class Form:
    """One target called with one number of rows."""

    name: str
    target: Target
    queries: int


@dataclass(frozen=True)
class Text:
    """prompt, then the tokens fed behind it; serial[i]: the reference's logits behind tokens[i]."""

    prompt: list[int]
    tokens: list[int]
    serial: np.ndarray

    def block(self, shift: int, queries: int) -> list[int]:
        return self.tokens[shift : shift + queries]


def make_text(reference: RewindingTarget, past: int, queries: int) -> Text:
    """A seeded random text. The reference reads it one token at a time and can go back to every alignment."""
    draw = np.random.default_rng(0)
    prompt = draw.integers(0, reference.vocab_size, past).tolist()
    tokens = draw.integers(0, reference.vocab_size, ALIGNMENTS + queries - 1).tolist()
    reference.start(past + len(tokens))
    reference.prefill(prompt)
    rows = []
    for token in tokens:
        reference.keep()
        rows.append(reference.verify([token]).copy())
    return Text(prompt, tokens, np.concatenate(rows))


def stand_at(target: Target, text: Text, shift: int) -> None:
    """Past = prompt + shift rows, the rows behind the prompt decoded one at a time as the reference decodes them."""
    if isinstance(target, RewindingTarget):
        target.rollback(len(text.prompt) + shift)
        return
    target.rollback(len(text.prompt))
    for token in text.block(0, shift):
        target.verify([token])


def is_serial(form: Form, text: Text) -> bool:
    """Whether the block's rows are the reference's at every alignment."""
    answers = []
    for shift in range(ALIGNMENTS):
        stand_at(form.target, text, shift)
        rows = form.target.verify(text.block(shift, form.queries))
        answers.append(rows.tobytes() == text.serial[shift : shift + form.queries].tobytes())
    return all(answers)


def time_forms(forms: Sequence[Form], text: Text, rounds: int, steps: Steps) -> Timings:
    """Each form at each alignment once a round; the mean over alignments is the form's time."""
    calls, before, groups = {}, {}, {}
    for form in forms:
        groups[form.name] = [f"{form.name} at {shift}" for shift in range(ALIGNMENTS)]
        for shift, name in enumerate(groups[form.name]):
            calls[name] = partial(form.target.verify, text.block(shift, form.queries))
            before[name] = partial(stand_at, form.target, text, shift)
    return interleave(calls, rounds, before=before, progress=steps.count).mean_over(groups)


def make_forms(bundle: Bundle, spec: SessionSpec, steps: Steps) -> list[Form]:
    """The forms of the module's docstring over three sessions: frozen, guarded QB, guarded PQ. R comes first."""
    options = QualifyOptions(arms=("R", "C_MQ", "C_QB", "C_PQ"), draft="none")
    targets = {arm.name: arm.target for arm in build_arms(bundle, options, spec, steps.text)}
    width = bundle.manifest.max_queries
    frozen = RewindingTarget.on_session_of(targets["R"], bundle, spec, width)
    return [
        Form("R q=1", frozen, 1),
        Form(f"native q={width}", frozen, width),
        Form(f"guarded native q={width}", targets["C_MQ"], width),
        Form(f"PQ q={width}", targets["C_PQ"], width),
        *(Form(f"QB q={queries}", targets["C_QB"], queries) for queries in range(1, width + 1)),
    ]


def measure(options: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    spec, bundle = spec_of(options), open_bundle(options.bundle)
    check_recipe(bundle, spec)
    width, context = bundle.manifest.max_queries, bundle.manifest.context_length
    if context is not None and options.past + ALIGNMENTS + width > context:
        raise QbpassError(f"--past {options.past} leaves no room in the model's context of {context}")
    forms = make_forms(bundle, spec, steps)
    steps.text(f"reading {options.past} rows of a random text")
    text = make_text(_reference(forms), options.past, width)
    for target in {id(form.target): form.target for form in forms[2:]}.values():
        target.start(len(text.prompt) + len(text.tokens))
        target.prefill(text.prompt)
    steps.text("comparing bytes")
    equal = {form.name: is_serial(form, text) for form in forms}
    times = time_forms(forms, text, options.rounds, steps)
    return {
        "past": options.past,
        "ms": {form.name: times.median_ms(form.name) for form in forms},
        "equal_to_serial": equal,
        "claims": claims(times, equal, width),
    }


def claims(times: Timings, equal: dict[str, bool], width: int) -> list[Claim]:
    block = f"QB q={width}"

    def claim(form: str, base: str, at_most: float | None = None) -> Claim:
        return Claim(f"{form} / {base}", times.ratio(form, base) if equal[form] else None, at_most=at_most)

    return [
        claim(block, f"native q={width}", at_most=0.92),
        claim(block, f"guarded native q={width}"),
        claim(block, "R q=1", at_most=1.08),
        claim(f"PQ q={width}", block),
        claim("QB q=1", "R q=1"),
        *(claim(f"QB q={queries}", "QB q=1") for queries in range(2, width + 1)),
    ]


def _reference(forms: Sequence[Form]) -> RewindingTarget:
    target = forms[0].target
    assert isinstance(target, RewindingTarget)
    return target


def show(results: dict[str, Any]) -> None:
    rows = [[form, f"{ms:.2f}", answer(results["equal_to_serial"][form])] for form, ms in results["ms"].items()]
    table([("call", False), ("median ms", True), ("rows = serial", False)], rows, f"past {results['past']}")
    show_claims(results["claims"])


def options() -> argparse.Namespace:
    made = parser(__doc__, rounds=20)
    made.add_argument(
        "--past", type=positive, default=1000, metavar="N", help="rows in the cache (default: %(default)s)"
    )
    return made.parse_args()


if __name__ == "__main__":
    run(measure, show, options())
