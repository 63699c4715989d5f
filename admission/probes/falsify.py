"""Asks every probe of every case, and keeps the answers."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qbpass.admission.probes.case import Case
from qbpass.admission.probes.probe import Probe, Settings, Tried
from qbpass.admission.probes.store import Store, code_version, key_of
from qbpass.admission.probes.trial import CaseRefused, Runner, each
from qbpass.admission.probes.witness import WITNESS_FILE, write_witness
from qbpass.models.session import SessionSpec

#: No probe can find out more: what no trial disproves is not thereby proven.
Verdict = Literal["false", "unknown"]


class Record(BaseModel):
    """An answer as it is kept. trials: those that ran; refused: those that ONNX Runtime did not run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    verdict: Verdict
    trials: int = Field(ge=0)
    differing: int = Field(ge=0)
    refused: int = Field(default=0, ge=0)
    reason: str | None = None  # of the first refusal
    detail: dict[str, Any] = {}
    ran_on: dict[str, tuple[str, ...]] = {}
    witness: str | None = None  # a folder's name

    @model_validator(mode="after")
    def _false_has_a_witness(self) -> Record:
        if (self.verdict == "false") != (self.witness is not None) or (self.verdict == "false") != (self.differing > 0):
            raise ValueError("false is what a witness proves, and nothing else is")
        return self


@dataclass(frozen=True)
class Answer:
    """One probe's answer of one case. witness: its folder."""

    case: Case
    probe: Probe
    record: Record
    witness: Path | None
    cached: bool


@dataclass(frozen=True)
class Bench:
    """What answers hold for and where they go."""

    spec: SessionSpec
    machine: Mapping[str, Any]
    store: Store
    witnesses: Path
    settings: Settings


Progress = Callable[[str, int, int], None]


def ask_all(
    cases: Sequence[Case],
    probes: Sequence[Probe],
    bench: Bench,
    progress: Progress,
    asking: Callable[[str], None] = lambda key: None,
) -> Iterator[Answer]:
    """An answer for each probe that applies to each case; each is kept as soon as it is there.

    asking: told an answer's key before the case is run, which is the last word of a process that a kernel crashes.
    """
    for place, case in enumerate(cases):
        progress(f"probing {case.operator}", place, len(cases))
        runner = Runner(case, bench.spec)
        for probe in probes:
            if probe.applies(case):
                asking(key_for(case, probe, bench))
                yield ask(case, probe, bench, runner)


def key_for(case: Case, probe: Probe, bench: Bench) -> str:
    """Under which the answer is kept: the machine's facts, the code's version, the case, the probe and its settings."""
    return key_of(dict(bench.machine), case.digest, probe.name, bench.settings.queries, bench.settings.seeds)


def crashed(how: str) -> Record:
    """The answer of a case that ended the process that ran it. How is nothing that rows could differ in: unknown."""
    return Record(verdict="unknown", trials=0, differing=0, refused=1, reason=how)


def ask(case: Case, probe: Probe, bench: Bench, runner: Runner) -> Answer:
    """The kept answer, or one found now."""
    key = key_for(case, probe, bench)
    kept = bench.store.load(key, Record)
    if kept is not None:
        folder = _kept_witness(kept, bench)
        if kept.witness is None or folder is not None:
            return Answer(case, probe, kept, folder, cached=True)
    record = _measure(case, probe, bench, runner, _name(case, probe, key))
    bench.store.save(key, record)
    folder = None if record.witness is None else bench.witnesses / record.witness
    return Answer(case, probe, record, folder, cached=False)


def _measure(case: Case, probe: Probe, bench: Bench, runner: Runner, name: str) -> Record:
    tried: list[Tried] = []
    refusals: list[str] = []
    witness = None
    for trial, outcome in each(probe.trials(case, bench.settings), runner):
        if isinstance(outcome, str):
            refusals.append(outcome)
            continue
        tried.append((trial.facts, outcome))
        if outcome and witness is None:
            witness = name
            named = {"probe": probe.name, "question": probe.question}
            for folder in {bench.store.folder / "witnesses", bench.witnesses}:
                write_witness(folder / name, trial, runner, named, bench.machine, code_version())
    return Record(
        verdict="unknown" if witness is None else "false",
        trials=len(tried),
        differing=sum(differs for _, differs in tried),
        refused=len(refusals),
        reason=next(iter(refusals), None),
        detail=probe.detail(tried),
        ran_on={provider: tuple(operators) for provider, operators in _providers(runner).items()},
        witness=witness,
    )


def _providers(runner: Runner) -> dict[str, list[str]]:
    try:
        return runner.providers()
    except CaseRefused:
        return {}


def _kept_witness(record: Record, bench: Bench) -> Path | None:
    """The witness' folder where it is wanted; brought there from the cache if need be. None where it is gone."""
    if record.witness is None or Path(record.witness).name != record.witness:
        return None
    wanted, kept = bench.witnesses / record.witness, bench.store.folder / "witnesses" / record.witness
    if not (wanted / WITNESS_FILE).is_file() and (kept / WITNESS_FILE).is_file():
        shutil.copytree(kept, wanted, dirs_exist_ok=True)
    return wanted if (wanted / WITNESS_FILE).is_file() else None


def _name(case: Case, probe: Probe, key: str) -> str:
    operator = re.sub(r"[^A-Za-z0-9]+", "_", case.operator)
    return f"{operator}.{probe.name}.{key[:12]}"
