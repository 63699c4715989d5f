"""What `qbpass probe` does: every probe asked of the graphs that a MODEL argument names, curves, placement.

Kernels are run by a worker process (probe_worker.py). Where one crashes, that answer is unknown with the signal as its
reason, and a new worker goes on behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qbpass.commands.options import OptionError
from qbpass.models.errors import ModelFileError
from qbpass.models.session import SessionSpec
from qbpass.probe_options import BUILTIN, ProbeOptions
from qbpass.probe_process import converse
from qbpass.screen import Steps

if TYPE_CHECKING:
    from qbpass.admission.probes.replay import Replay
    from qbpass.admission.probes.report import ProbeReport
    from qbpass.models.decoder import Decoder
    from qbpass.rewrites.bundle import Bundle


def probe_model(model: str, options: ProbeOptions, steps: Steps) -> ProbeReport:
    """The report of an .onnx file, an export's folder, a bundle, or the builtin operators.

    Raises OptionError for names that `only` does not know, ModelFileError for a graph that crashes ONNX Runtime, else
    what loading, freezing and running raise.
    """
    if model == BUILTIN:
        told = _Told(model, options, steps)
        told.listen({"frozen": None, "elsewhere": {}, "bundle": None, "recipe": None})
        return told.report(dict(options.bench().machine))
    from qbpass.models.recipe import recipe_of

    with _opened(Path(model), options.spec, steps) as (frozen, bundle):
        _check_past(options, frozen)
        steps.text("reading the recipe")
        recipe = recipe_of(frozen, options.spec).model_dump(mode="json")
        told = _Told(model, options, steps)
        folder = None if bundle is None else str(bundle.folder.absolute())
        elsewhere = {location: str(place.absolute()) for location, place in frozen.elsewhere.items()}
        graph = {"frozen": str(frozen.path.absolute()), "elsewhere": elsewhere}
        told.listen({**graph, "bundle": folder, "recipe": recipe})
    return told.report(recipe)


def replay_witness(folder: Path) -> Replay:
    """What a witness shows in a process of its own.

    Raises WitnessError where it can't be used or crashes that process, ProviderError where its provider is not there.
    """
    from qbpass.admission.probes.replay import Replay, WitnessError
    from qbpass.admission.probes.witness import Witness

    told: dict[str, Any] = {}
    died_of = converse({"replay": str(folder)}, told.update)
    if died_of is not None:
        raise WitnessError(f"{folder} crashed ONNX Runtime ({died_of}): it is damaged or made to do harm")
    found = told["replayed"]
    witness = Witness.model_validate_json(found["witness"])
    return Replay(witness, found["reproduced"], found["bytes_as_recorded"], tuple(found["unlike"]))


@contextmanager
def _opened(path: Path, spec: SessionSpec, steps: Steps) -> Iterator[tuple[Decoder, Bundle | None]]:
    from qbpass.models_at import frozen_decoder
    from qbpass.rewrites.bundle import check_recipe, open_bundle
    from qbpass.rewrites.manifest import MANIFEST_FILE

    bundle = open_bundle(path) if (path / MANIFEST_FILE).is_file() else None
    if bundle is not None:
        check_recipe(bundle, spec)
    with frozen_decoder(path, spec, steps.text) as frozen:
        yield frozen, bundle


def _check_past(options: ProbeOptions, frozen: Decoder) -> None:
    from qbpass.admission.probes.curve import WIDEST

    context = frozen.context_length
    if options.past is not None and context is not None and options.past + WIDEST > context:
        raise OptionError(f"--past {options.past} leaves no room for {WIDEST} rows in the model's context of {context}")


@dataclass
class _Told:
    """What workers have said so far. asking: the key of the answer that the worker is finding."""

    model: str
    options: ProbeOptions
    steps: Steps
    cases: dict[str, Any] = field(default_factory=dict)
    left: list[Any] = field(default_factory=list)
    placement: Any = None
    curves: list[Any] = field(default_factory=list)
    asking: str | None = None
    doing: str = "loading the graph"

    def listen(self, question: dict[str, Any]) -> None:
        """Workers one behind the other, until one comes to its end."""
        made: list[str] = []
        while True:
            run = {"model": self.model, "options": self.options.to_json(), "made": made, "again": bool(made)}
            self.asking = None
            died_of = converse(run | question, self._take)
            if died_of is None:
                return
            if self.asking is None or self.asking in made:
                raise ModelFileError(
                    f"{self.model} crashed ONNX Runtime ({died_of}) while {self.doing}: export it again"
                )
            self._keep_crash(self.asking, died_of)
            made = list(dict.fromkeys([*made, *self.cases, self.asking]))

    def _keep_crash(self, key: str, died_of: str) -> None:
        from qbpass.admission.probes.falsify import crashed

        self.options.bench().store.save(key, crashed(f"it crashed ONNX Runtime ({died_of})"))

    def _take(self, message: dict[str, Any]) -> None:
        if "asking" in message:
            self.asking = message["asking"]
        if "case" in message:
            self.cases.setdefault(message["key"], message["case"])
            self.asking = None
        if "progress" in message:
            self._show(*message["progress"])
        self.left = message.get("left", self.left)
        self.placement = message.get("placement", self.placement)
        self.curves += [message["curve"]] if "curve" in message else []

    def _show(self, text: str, done: int | None, total: int | None) -> None:
        self.doing = text
        if done is None or total is None:
            self.steps.text(text)
        else:
            self.steps.count(text, done, total)

    def report(self, recipe: dict[str, Any]) -> ProbeReport:
        from qbpass.admission.probes.report import ProbeReport

        return ProbeReport.model_validate(
            {
                "model": self.model,
                "recipe": recipe,
                "queries": self.options.queries,
                "cases": list(self.cases.values()),
                "left_out": self.left,
                "placement": self.placement,
                "curves": self.curves,
            }
        )
