"""A witness run again. The folder may come from a stranger: every size is bounded and nothing is unpickled."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from pydantic import ValidationError

from qbpass.admission.probes.case import Weight
from qbpass.admission.probes.fills import Array
from qbpass.admission.probes.kinds import has_bodies
from qbpass.admission.probes.store import as_plain
from qbpass.admission.probes.trial import Carried, CaseRefused, Cut, cut_all, run_calls, same
from qbpass.admission.probes.weights import MOST_BYTES
from qbpass.admission.probes.witness import WITNESS_FILE, Arm, DrawnWeight, Witness, digest
from qbpass.models.errors import QbpassError
from qbpass.models.external_data import external_tensors
from qbpass.models.graph_io import read_graph
from qbpass.models.recipe import machine_facts
from qbpass.models.session import PROVIDERS, SessionSpec, open_session

MAX_WITNESS_BYTES = 2**20
MAX_MODEL_BYTES = 64 * 2**20
MAX_OPERAND_BYTES = 512 * 2**20  # of a witness' operands together
MAX_NODES = 256
MAX_THREADS = 1024
#: They make tensors of a size that no operand has.
GROWING = frozenset(
    {
        "ConstantOfShape",
        "EyeLike",
        "OneHot",
        "Pad",
        "RandomNormal",
        "RandomUniform",
        "Range",
        "Resize",
        "Tile",
        "Upsample",
    }
)


class WitnessError(QbpassError):
    """A witness can't be used: it is damaged, too large, or asks for what is not here."""


@dataclass(frozen=True)
class Replay:
    """What a witness showed here. unlike: facts of the machine it was seen on that are others here."""

    witness: Witness
    reproduced: bool
    bytes_as_recorded: bool
    unlike: tuple[str, ...]


def replay(folder: Path) -> Replay:
    """Run both sides of a witness, on its own provider and number of threads.

    Raises WitnessError where the folder can't be used, ProviderError where its provider is not there.
    """
    witness = _read(folder)
    spec = _spec(witness)
    here = as_plain(machine_facts(spec))
    reader = _Reader(folder, witness, spec)
    alone, together = reader.run(witness.alone), reader.run(witness.together)
    if alone.keys() != together.keys():
        raise WitnessError(f"the two sides of {folder} compare different outputs: it is damaged")
    recorded = (digest(alone), digest(together)) == (witness.alone.sha256, witness.together.sha256)
    return Replay(witness, not same(alone, together), recorded, _unlike(witness.machine, here))


def _read(folder: Path) -> Witness:
    path = folder / WITNESS_FILE
    if not path.is_file():
        raise WitnessError(f"{folder} is no witness (no {WITNESS_FILE}): give a folder that `qbpass probe` named")
    if path.stat().st_size > MAX_WITNESS_BYTES:
        raise WitnessError(f"{path} is larger than {MAX_WITNESS_BYTES:,} bytes: this is no witness")
    try:
        return Witness.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise WitnessError(f"{path} is no witness this qbpass reads ({where}: {first['msg']})") from error


def _spec(witness: Witness) -> SessionSpec:
    names = {name: key for key, name in PROVIDERS.items()}
    provider, threads = witness.machine.get("provider"), witness.machine.get("threads")
    if provider not in names:
        raise WitnessError(f"the witness is of provider {str(provider)[:60]!r}, which this qbpass does not know")
    if not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
        raise WitnessError(f"the witness is of {str(threads)[:60]} threads: it is damaged")
    return SessionSpec(provider=names[provider], threads=threads)


def _unlike(then: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[str, ...]:
    """Lines for people. What the witness says of its machine is a stranger's text."""
    return tuple(
        f"{_printable(name).replace('_', ' ')}: {_printable(then.get(name))} there, {_printable(here.get(name))} here"
        for name in sorted({*then, *here})
        if then.get(name) != here.get(name)
    )


def _printable(value: Any) -> str:
    return "".join(c if c.isprintable() else " " for c in str(value)[:200])


class _Reader:
    """Reads what a witness names, each file inside its folder and no larger than it may be."""

    def __init__(self, folder: Path, witness: Witness, spec: SessionSpec):
        self.folder, self.witness, self.spec = folder, witness, spec
        self._left = MAX_OPERAND_BYTES
        self._arrays: dict[str, Array] = {}

    def run(self, arm: Arm) -> dict[str, Array]:
        calls = [{name: self._feed(feed.file, feed.carried) for name, feed in call.items()} for call in arm.calls]
        cuts = {name: tuple(Cut(c.axis, c.start, c.stop) for c in kept) for name, kept in arm.cuts.items()}
        session = open_session(self._model(arm.model).SerializeToString(), self.spec)
        try:
            return cut_all(run_calls(session, calls), cuts)
        except (CaseRefused, KeyError) as error:
            raise WitnessError(f"{self.folder} can't be run: {error}") from error

    def _feed(self, file: str | None, carried: str | None) -> Array | Carried:
        if (file is None) == (carried is None):
            raise WitnessError(
                f"{self.folder / WITNESS_FILE} has an operand that is neither file nor carried: it is damaged"
            )
        return Carried(carried) if carried is not None else self._array(file or "")

    def _model(self, name: str) -> onnx.ModelProto:
        path = self._inside(name)
        if path.stat().st_size > MAX_MODEL_BYTES:
            raise WitnessError(f"{path} is larger than {MAX_MODEL_BYTES / 2**20:.0f} MiB: a witness' model is small")
        model = read_graph(path)
        nodes = model.graph.node
        growing = next((n.op_type for n in nodes if n.op_type in GROWING or has_bodies(n)), None)
        if next(external_tensors(model), None) is not None or model.functions or len(nodes) > MAX_NODES or growing:
            raise WitnessError(
                f"{path} is not a model that probes write ({growing or 'external data or too many nodes'})"
            )
        _fill_in(model, [self._weight(entry) for entry in self.witness.drawn])
        return model

    def _weight(self, entry: DrawnWeight) -> onnx.TensorProto:
        try:
            size = math.prod(entry.dims) * int(helper.tensor_dtype_to_np_dtype(entry.elem_type).itemsize)
            if size > MOST_BYTES or min(entry.dims, default=0) < 0:
                raise ValueError("too large")
            array = Weight(entry.name, entry.elem_type, entry.dims, fill=entry.fill, seed=entry.seed).array()
        except (KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
            raise WitnessError(
                f"{self.folder} names a constant that can't be drawn ({error}): it is damaged"
            ) from error
        if hashlib.sha256(array.tobytes()).hexdigest() != entry.sha256:
            raise WitnessError(
                f"this numpy {np.__version__} draws other values for {entry.name!r} than the witness': use another"
            )
        return numpy_helper.from_array(np.asarray(array, order="C"), entry.name)

    def _array(self, name: str) -> Array:
        if name not in self._arrays:
            path = self._inside(name)
            self._left -= path.stat().st_size
            if self._left < 0:
                raise WitnessError(f"the operands in {self.folder} take more than {MAX_OPERAND_BYTES / 2**20:.0f} MiB")
            self._arrays[name] = _load(path)
        return self._arrays[name]

    def _inside(self, name: str) -> Path:
        path = self.folder / name
        if not path.resolve().is_relative_to(self.folder.resolve()) or not path.is_file():
            raise WitnessError(f"{path} is missing, or no file of the witness' own folder")
        return path


def _load(path: Path) -> Array:
    """An array of numbers; its header may promise no more than the file holds."""
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            if version != (1, 0):
                raise ValueError(f"version {version}")
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            if dtype.kind not in "fiub" or math.prod(shape) * dtype.itemsize != path.stat().st_size - file.tell():
                raise ValueError("a header that does not fit its data")
        array: Array = np.load(path, allow_pickle=False)
        return array
    except (ValueError, EOFError, SyntaxError) as error:
        raise WitnessError(f"{path} is not an array of numbers ({error}): it is damaged") from error


def _fill_in(model: onnx.ModelProto, weights: list[onnx.TensorProto]) -> None:
    """Drawn weights, inputs in the file, become the constants they were."""
    inputs = [value for value in model.graph.input if value.name not in {w.name for w in weights}]
    named = {value.name for value in model.graph.input}
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(weight for weight in weights if weight.name in named)
