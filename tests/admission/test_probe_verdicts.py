"""What probes answer: false where rows differ by what is computed, unknown where no trial found a difference."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from onnx import TensorProto, helper
from probe_cases import (
    N,
    Q,
    bench,
    case_of,
    counting_cache,
    coupled,
    dims,
    longest_only,
    operand,
    placed,
    reshaped,
    result,
    shifted,
    tops,
)
from pydantic import ValidationError

from qbpass.admission.probes.batch import BATCH
from qbpass.admission.probes.case import Case, Operand
from qbpass.admission.probes.chain import CHAIN
from qbpass.admission.probes.coupling import COUPLING
from qbpass.admission.probes.curve import measure_curve
from qbpass.admission.probes.falsify import Answer, Record, Verdict, ask
from qbpass.admission.probes.fills import Fill
from qbpass.admission.probes.interleaved import Timings
from qbpass.admission.probes.padding import PADDING, residues, tails
from qbpass.admission.probes.position import POSITION
from qbpass.admission.probes.probe import Probe, Settings
from qbpass.admission.probes.rows import ROWS
from qbpass.admission.probes.trial import Runner


def answer(case: Case, probe: Probe, folder: Path) -> Answer:
    assert probe.applies(case)
    place = bench(folder)
    return ask(case, probe, place, Runner(case, place.spec))


@pytest.mark.parametrize("probe", [ROWS, POSITION, COUPLING])
def test_rows_that_know_of_no_other_are_unknown_and_never_true(probe: Probe, tmp_path: Path) -> None:
    record = answer(shifted(), probe, tmp_path).record
    assert (record.verdict, record.differing, record.witness) == ("unknown", 0, None)
    assert record.trials > 0


def test_no_verdict_is_true() -> None:
    assert set(get_args(Verdict)) == {"false", "unknown"}
    with pytest.raises(ValidationError):
        Record(verdict="true", trials=1, differing=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "claim",
    [
        {"verdict": "false", "trials": 4, "differing": 1},  # no witness
        {"verdict": "false", "trials": 4, "differing": 0, "witness": "w"},
        {"verdict": "unknown", "trials": 4, "differing": 2, "witness": "w"},
    ],
)
def test_false_is_what_a_witness_proves_and_nothing_else_is(claim: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Record.model_validate(claim)


def test_one_scale_over_all_rows_is_found_alone_and_in_a_block(tmp_path: Path) -> None:
    for probe in (ROWS, COUPLING):
        found = answer(coupled(), probe, tmp_path).record
        assert found.verdict == "false"
        assert found.detail["widths_differing"] == [2, 3]


def test_equal_rows_that_come_out_unequal_are_a_matter_of_place(tmp_path: Path) -> None:
    found = answer(placed(), POSITION, tmp_path).record
    assert (found.verdict, found.differing) == ("false", found.trials)


def test_a_row_is_compared_at_every_place_of_every_block(tmp_path: Path) -> None:
    found = answer(placed(), ROWS, tmp_path).record
    # Two seeds; blocks of 2 and 3 rows in each turn: 4 + 9 comparisons. A row is its own sum at the first place alone.
    assert found.trials == 2 * (4 + 9)
    assert found.differing == 2 * (2 + 6)


def test_each_row_of_a_block_is_tried_at_each_place() -> None:
    trials = list(ROWS.trials(shifted(), Settings(queries=3, seeds=(0,))))
    widest = {(id(trial.alone), trial.facts["place"]) for trial in trials if trial.facts["rows"] == 3}
    assert len(widest) == 9


@pytest.mark.parametrize("probe", [ROWS, POSITION, COUPLING])
def test_counts_of_rows_are_those_of_the_call_they_are_fed_to(probe: Probe, tmp_path: Path) -> None:
    record = answer(reshaped(), probe, tmp_path).record
    assert (record.verdict, record.refused) == ("unknown", 0)
    assert record.trials > 0


def test_a_tail_that_counts_is_found_and_told_by_residue(tmp_path: Path) -> None:
    found = answer(longest_only(), PADDING, tmp_path).record
    assert found.verdict == "false"
    assert found.detail["residues"]["2"] == [0, 1]
    assert found.detail["explained_by"] is None  # no residue class is free of it


def test_a_tail_that_is_masked_is_masked(tmp_path: Path) -> None:
    """A largest value is exact, so a tail of -inf shows on no machine, and any other tail on every one."""
    record = answer(tops(), PADDING, tmp_path).record
    assert (record.trials > 0, record.refused) == (True, 0)
    assert (record.verdict, record.differing) == ("unknown", 0)


def test_residues_name_the_smallest_modulus_that_explains_every_length() -> None:
    tried = [({"keys": n}, n % 4 == 3) for n in range(1, 65)]
    assert residues(tried)["explained_by"] == {"modulus": 4, "residues": [3]}
    assert residues(tried)["residues"]["16"] == [3, 7, 11, 15]
    for every in (False, True):  # no length, or every one: no residue tells them apart
        assert residues([({"keys": n}, every) for n in range(1, 65)])["explained_by"] is None


def test_two_lengths_of_many_are_no_rule() -> None:
    tried = [({"keys": n}, n in (7, 24)) for n in range(1, 65)]
    assert residues(tried)["explained_by"] is None


def test_a_softmax_is_padded_with_minus_infinity_and_with_the_types_lowest_value() -> None:
    node = helper.make_node("Softmax", ["x"], ["y"], axis=-1)
    softmax = case_of([node], [operand("x", 1, Q, N)], [result("y", 1, Q, N)])
    assert [next(iter(tail.values())) for tail in tails(softmax)] == [-np.inf, float(np.finfo(np.float32).min)]


def test_an_attentions_truth_values_mask_its_tail() -> None:
    node = helper.make_node("Attention", ["q", "k", "v", "m"], ["y"])
    mask = Operand("m", TensorProto.BOOL, (*dims(1, 1), Q, N), Fill(kind="bits"))
    qkv = [operand("q", 1, 2, Q, 8), operand("k", 1, 2, N, 8), operand("v", 1, 2, N, 8)]
    attention = case_of([node], [*qkv, mask], [result("y", 1, 2, Q, 8)])
    for trial in itertools.islice(PADDING.trials(attention, Settings(queries=3)), 20):
        (call,), n = trial.together.run.calls, trial.facts["keys"]
        looks = call["m"]
        assert isinstance(looks, np.ndarray)
        assert looks[..., :n].all()
        assert looks[..., n:].size == trial.facts["tail"]
        assert not looks[..., n:].any()


def test_a_cache_makes_a_block_a_chain(tmp_path: Path) -> None:
    case = counting_cache()
    assert not ROWS.applies(case)
    found = answer(case, CHAIN, tmp_path).record
    assert found.verdict == "false"
    # Of each block every row but the last sees another number of rows; the cache itself is the same.
    assert found.differing * 7 == found.trials * 3


def test_what_onnx_runtime_does_not_run_is_unknown_with_the_reason(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["x", "z"], ["y"])
    unfit = case_of([node], [operand("x", 1, Q, 4), operand("z", 3, 5)], [result("y", 1, Q, 5)])
    record = answer(unfit, ROWS, tmp_path).record
    assert (record.verdict, record.trials) == ("unknown", 0)
    assert record.refused > 0
    assert record.reason


def test_batches_are_asked_of_products_whose_rows_can_be_batch_entries(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["q", "k"], ["y"])
    scores = case_of([node], [operand("q", 1, 2, Q, 8), operand("k", 1, 2, 8, N)], [result("y", 1, 2, Q, N)])
    assert BATCH.applies(scores)
    assert answer(scores, BATCH, tmp_path).record.trials > 0
    flat = case_of([node], [operand("q", Q, 8), operand("k", 8, 5)], [result("y", Q, 5)])
    assert not BATCH.applies(flat)
    assert not BATCH.applies(shifted())


def test_the_curve_is_the_median_of_each_rounds_ratio_to_a_call_of_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"1": np.array([1.0, 2.0, 4.0]), "2": np.array([2.0, 3.0, 4.0])}
    monkeypatch.setattr("qbpass.admission.probes.curve.interleave", lambda *args, **options: Timings(seconds))
    one, two = measure_curve("g", 7, {2: int, 1: int}, lambda text, done, total: None).points
    assert (one.queries, one.ms, one.ratio) == (1, 2000.0, 1.0)
    assert (two.queries, two.ms, two.ratio) == (2, 3000.0, 1.5)
    assert (two.low, two.high) == (1.25, 1.75)
