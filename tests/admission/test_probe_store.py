"""Answers are kept by machine, code and case; nothing that is kept is half of anything."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from probe_cases import SPEC, bench, coupled, shifted

from qbpass.admission.probes import store
from qbpass.admission.probes.coupling import COUPLING
from qbpass.admission.probes.falsify import Answer, Bench, ask, ask_all
from qbpass.admission.probes.probe import Settings
from qbpass.admission.probes.rows import ROWS
from qbpass.admission.probes.trial import Runner
from qbpass.admission.probes.witness import WITNESS_FILE


def asked(place: Bench) -> Answer:
    return ask(coupled(), COUPLING, place, Runner(coupled(), place.spec))


def test_an_answer_is_measured_once(tmp_path: Path) -> None:
    first, second = asked(bench(tmp_path)), asked(bench(tmp_path))
    assert (first.cached, second.cached) == (False, True)
    assert first.record == second.record
    assert first.witness == second.witness


def test_fresh_measures_again(tmp_path: Path) -> None:
    asked(bench(tmp_path))
    assert not asked(bench(tmp_path, fresh=True)).cached


def test_other_machines_widths_and_code_have_other_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = bench(tmp_path)
    asked(place)
    assert not asked(replace(place, machine={**place.machine, "processor": "abacus"})).cached
    assert not asked(replace(place, machine={**place.machine, "environment": {"ORT_X": "1"}})).cached
    assert not asked(replace(place, settings=Settings(queries=2))).cached
    monkeypatch.setattr(store, "code_version", lambda: "another")
    assert not asked(place).cached


def test_another_case_is_no_answer(tmp_path: Path) -> None:
    place = bench(tmp_path)
    ask(shifted(), ROWS, place, Runner(shifted(), SPEC))
    assert not ask(coupled(), ROWS, place, Runner(coupled(), SPEC)).cached


@pytest.mark.parametrize("text", ["", "{", '{"verdict": "true", "trials": 1, "differing": 0}', '{"verdict": "false"}'])
def test_a_damaged_answer_is_measured_again(text: str, tmp_path: Path) -> None:
    first = asked(bench(tmp_path))
    (kept,) = tmp_path.glob("*.json")
    kept.write_text(text)
    again = asked(bench(tmp_path))
    assert not again.cached
    assert again.record == first.record


def test_an_answer_whose_witness_is_gone_is_measured_again(tmp_path: Path) -> None:
    shutil.rmtree(asked(bench(tmp_path)).witness or "")
    again = asked(bench(tmp_path))
    assert not again.cached
    assert again.witness is not None
    assert (again.witness / WITNESS_FILE).is_file()


def test_witnesses_go_where_they_are_wanted_also_those_of_kept_answers(tmp_path: Path) -> None:
    for name in ("first", "second"):
        found = asked(bench(tmp_path / "cache", witnesses=tmp_path / name))
        assert found.witness is not None
        assert found.witness.parent == tmp_path / name
        assert (found.witness / WITNESS_FILE).is_file()
    assert found.cached


def test_a_run_that_ends_early_leaves_earlier_answers_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = bench(tmp_path)

    def broken(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    answers = ask_all([shifted(), coupled()], [ROWS], place, lambda text, done, total: None)
    next(answers)
    monkeypatch.setattr("qbpass.admission.probes.witness.Witness.model_dump_json", broken)
    with pytest.raises(KeyboardInterrupt):
        next(answers)
    monkeypatch.undo()
    assert not any((tmp_path / "witnesses").iterdir())
    again = list(ask_all([shifted(), coupled()], [ROWS], place, lambda text, done, total: None))
    assert [answer.cached for answer in again] == [True, False]
