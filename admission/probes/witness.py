"""A difference as files: the small model, the operands, both results' digests, and on what machine it was seen.

The folder needs nothing else. A reader trusts none of it: see replay.py.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from qbpass.admission.probes.case import CASE, Case
from qbpass.admission.probes.fills import Array, Fill
from qbpass.admission.probes.trial import Carried, Cut, Run, Runner, Trial, View

WITNESS_FILE = "witness.json"

#: A file in the witness' own folder: one from a stranger can name none outside it.
PlainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=120)]


#: What is printed. A witness from a stranger can send no escapes to a terminal.
Text = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f]*$", max_length=300)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DrawnWeight(_Frozen):
    """A constant that is no part of the file: numpy's default_rng(seed) draws it, and the digest says if it did."""

    name: str
    elem_type: int
    dims: tuple[int, ...]
    fill: Fill
    seed: int
    sha256: str


class KeptCut(_Frozen):
    axis: int = Field(ge=0)
    start: int = Field(ge=0)
    stop: int = Field(ge=0)


class KeptFeed(_Frozen):
    """An operand: a .npy file, or an output of the call before."""

    file: PlainName | None = None
    carried: str | None = None


class Arm(_Frozen):
    """One side: calls one behind the other; of the last one's outputs, the parts that are compared."""

    model: PlainName
    calls: tuple[dict[str, KeptFeed], ...] = Field(min_length=1, max_length=64)
    cuts: dict[str, tuple[KeptCut, ...]] = Field(min_length=1)
    sha256: str  # of the parts' bytes, in the order of `cuts`


class Element(_Frozen):
    value: Text
    bytes: Text  # hex, in memory order


class Difference(_Frozen):
    """The first element that differs, and how many do."""

    output: Text
    index: tuple[int, ...]
    alone: Element
    together: Element
    elements: int
    differing: int
    largest: float | None  # None where a difference is no finite number


class Witness(_Frozen):
    """witness.json."""

    schema_version: Literal[1] = 1
    probe: Text
    question: Text  # the sentence that this folder proves false
    operator: Text
    domain: Text
    dtypes: tuple[str, ...]
    shapes: dict[str, tuple[str, ...]]
    facts: dict[Text, int]
    machine: dict[str, Any]  # the recipe's fields that are the process's (models/recipe.py)
    ran_on: dict[str, tuple[str, ...]]
    code: str
    drawn: tuple[DrawnWeight, ...]
    alone: Arm
    together: Arm
    difference: Difference


def write_witness(
    folder: Path, trial: Trial, runner: Runner, named: Mapping[str, str], machine: Mapping[str, Any], code: str
) -> None:
    """Writes the folder, whole or not at all. named: the probe's name and question."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        staging.chmod(0o755)  # mkdtemp's folders are private
        writer = _Writer(staging, runner)
        witness = Witness(
            probe=named["probe"],
            question=named["question"],
            operator=runner.case.operator,
            domain=runner.case.domain,
            **runner.case.describe(),
            facts=dict(trial.facts),
            machine=dict(machine),
            ran_on={name: tuple(operators) for name, operators in runner.providers().items()},
            code=code,
            drawn=_drawn(runner.case),
            alone=writer.arm(trial.alone, "alone"),
            together=writer.arm(trial.together, "together"),
            difference=_difference(runner.view(trial.alone), runner.view(trial.together)),
        )
        (staging / WITNESS_FILE).write_text(witness.model_dump_json(indent=1), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        staging.replace(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


class _Writer:
    def __init__(self, folder: Path, runner: Runner):
        self.folder, self.runner = folder, runner
        self._files: dict[int, str] = {}

    def arm(self, view: View, side: str) -> Arm:
        return Arm(
            model=self._model(view.run.form),
            calls=tuple(self._call(view.run, index, side) for index in range(len(view.run.calls))),
            cuts={name: tuple(_kept(cut) for cut in cuts) for name, cuts in view.cuts.items()},
            sha256=digest(self.runner.view(view)),
        )

    def _model(self, form: str) -> str:
        name = "model.onnx" if form == CASE else f"model.{''.join(c if c.isalnum() else '_' for c in form)}.onnx"
        model = self.runner.case.model(form, drawn_weights=False)
        (self.folder / name).write_bytes(model.SerializeToString(deterministic=True))
        return name

    def _call(self, run: Run, index: int, side: str) -> dict[str, KeptFeed]:
        wanted = {entry.name for entry in self.runner.session(run.form).get_inputs()}
        call = {}
        for name, value in run.calls[index].items():
            if name not in wanted:
                continue
            if isinstance(value, Carried):
                call[name] = KeptFeed(carried=value.output)
            else:
                call[name] = KeptFeed(file=self._array(value, f"{side}.{index}.{name}"))
        return call

    def _array(self, value: Any, name: str) -> str:
        """A file for each array; one that several calls share is written once."""
        if id(value) not in self._files:
            self._files[id(value)] = f"{name}.npy"
            np.save(self.folder / f"{name}.npy", value, allow_pickle=False)
        return self._files[id(value)]


def digest(parts: Mapping[str, Array]) -> str:
    """SHA-256 (hex) of the parts' bytes."""
    state = hashlib.sha256()
    for part in parts.values():
        state.update(part.tobytes())
    return state.hexdigest()


def _kept(cut: Cut) -> KeptCut:
    return KeptCut(axis=cut.axis, start=cut.start, stop=cut.stop)


def _drawn(case: Case) -> tuple[DrawnWeight, ...]:
    return tuple(
        DrawnWeight(
            name=w.name,
            elem_type=w.elem_type,
            dims=w.dims,
            fill=w.fill,
            seed=w.seed,
            sha256=hashlib.sha256(w.array().tobytes()).hexdigest(),
        )
        for w in case.weights
        if w.fill is not None and w.value is None
    )


def _difference(alone: Mapping[str, Array], together: Mapping[str, Array]) -> Difference:
    name = next(name for name in alone if alone[name].tobytes() != together[name].tobytes())
    one, other = alone[name], together[name]
    unequal = _bytes_of(one) != _bytes_of(other)
    where = unequal.any(axis=-1)
    first = int(np.argmax(where))
    gap = np.abs(one.astype(np.float64) - other.astype(np.float64))
    largest = float(gap.max()) if np.isfinite(gap).all() else None
    return Difference(
        output=name,
        index=tuple(int(i) for i in np.unravel_index(first, one.shape)),
        alone=_element(one, first),
        together=_element(other, first),
        elements=int(where.size),
        differing=int(where.sum()),
        largest=largest,
    )


def _bytes_of(array: Array) -> Array:
    """(elements, bytes of one)."""
    return np.frombuffer(array.tobytes(), np.uint8).reshape(array.size, array.itemsize)


def _element(array: Array, place: int) -> Element:
    value = array.reshape(-1)[place]
    return Element(value=str(value), bytes=value.tobytes().hex())
