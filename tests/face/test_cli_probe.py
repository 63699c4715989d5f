"""`qbpass probe`, end to end on the tiny model: answers, witnesses that a second command replays, and the curve."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qbpass.admission.probes.report import ProbeReport
from qbpass.rewrites.bundle import Bundle

Run, Mistake = Callable[..., Any], Callable[..., str]
TWO_THREADS = ("--threads", 2)


@pytest.fixture
def cache(tiny_eager: Path, tiny_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test's own, once the shared exports are there."""
    monkeypatch.setenv("QBPASS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def probed(run: Run, folder: Path, *arguments: object) -> dict[str, Any]:
    answer = run("probe", *arguments, "--json", folder / "report.json")
    assert answer.code == 0, answer.err
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def test_every_kind_of_node_is_asked_about_and_no_answer_is_true(
    cache: Path, tiny_eager: Path, tmp_path: Path, qbpass_run: Run
) -> None:
    report = probed(qbpass_run, tmp_path, tiny_eager, *TWO_THREADS, "--no-curve")
    assert ProbeReport.model_validate_json(json.dumps(report)).schema_version == 1
    assert report["recipe"]["threads"] == 2
    assert {case["verdict"] for case in report["cases"]} <= {"false", "unknown"}
    asked = {(case["operator"], case["probe"]) for case in report["cases"]}
    assert {
        ("MatMul", "rows"),
        ("Softmax", "padding"),
        ("attention core", "query_to_batch"),
        ("Mul", "position"),
    } <= asked
    for case in report["cases"]:
        assert case["provider"] == "CPUExecutionProvider"
        assert set(case["ran_on"]) == {"CPUExecutionProvider"}
        assert case["trials"] > 0
        assert (case["witness"] is not None) == (case["verdict"] == "false") == (case["differing"] > 0)
    assert set(report["placement"]["assigned"]) == {"CPUExecutionProvider"}
    assert report["curves"] == []


def test_what_is_false_comes_first_and_every_witness_is_replayed_by_a_second_process(
    cache: Path, tmp_path: Path, qbpass_run: Run
) -> None:
    """Two kinds that are false on every machine: one scale over the whole tensor couples rows."""
    only = ("--only", "DynamicQuantizeLinear,coupling")
    report = probed(qbpass_run, tmp_path, "builtin:operators", *TWO_THREADS, *only, "--witnesses", tmp_path / "w")
    (case,) = report["cases"]
    assert (case["verdict"], case["differing"]) == ("false", case["trials"])
    assert Path(case["witness"]).parent == tmp_path / "w"
    replayed = subprocess.run(
        [sys.executable, "-m", "qbpass", "probe", "--replay", case["witness"]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert replayed.returncode == 1, replayed.stderr
    assert "reproduced: the two sides differ here, with the recorded bytes" in replayed.stdout
    assert qbpass_run("probe", "--replay", case["witness"]).code == 1
    shown = qbpass_run("probe", "builtin:operators", *TWO_THREADS, "--only", "DynamicQuantizeLinear").out
    verdicts = [line.split()[0] for line in shown.splitlines() if line.startswith(("false", "unknown"))]
    assert verdicts == sorted(verdicts)
    assert set(verdicts) == {"false", "unknown"}


def test_a_witness_whose_sides_are_equal_here_is_exit_code_0(cache: Path, tmp_path: Path, qbpass_run: Run) -> None:
    only = ("--only", "DynamicQuantizeLinear,coupling")
    report = probed(qbpass_run, tmp_path, "builtin:operators", *TWO_THREADS, *only)
    witness = Path(report["cases"][0]["witness"]) / "witness.json"
    value = json.loads(witness.read_text())
    value["together"] = value["alone"]
    witness.write_text(json.dumps(value))
    answer = qbpass_run("probe", "--replay", witness.parent, "--json", tmp_path / "r.json")
    assert answer.code == 0
    assert "not reproduced" in answer.out
    assert "proves nothing true" in answer.out
    assert json.loads((tmp_path / "r.json").read_text())["reproduced"] is False


def test_answers_are_kept_and_fresh_measures_again(
    cache: Path, tiny_eager: Path, tmp_path: Path, qbpass_run: Run
) -> None:
    def cached(*more: object) -> set[bool]:
        report = probed(qbpass_run, tmp_path, tiny_eager, *TWO_THREADS, "--no-curve", "--only", "Softmax", *more)
        return {case["cached"] for case in report["cases"]}

    assert [cached(), cached(), cached("--fresh")] == [{False}, {True}, {False}]
    assert any((cache / "probes").glob("*.json"))


def test_the_curve_has_calls_of_one_to_eight_rows_and_starts_at_one(
    cache: Path, tiny_eager: Path, tmp_path: Path, qbpass_run: Run
) -> None:
    report = probed(qbpass_run, tmp_path, tiny_eager, *TWO_THREADS, "--only", "Softmax,rows", "--past", 20)
    (curve,) = report["curves"]
    assert (curve["graph"], curve["past"]) == ("frozen", 20)
    assert [point["queries"] for point in curve["points"]] == list(range(1, 9))
    assert curve["points"][0]["ratio"] == 1.0
    assert all(point["low"] <= point["ratio"] <= point["high"] for point in curve["points"])
    assert all(point["ms"] > 0 for point in curve["points"])


def test_a_bundle_is_probed_in_both_graphs_and_timed_in_both(
    cache: Path, tiny_bundle: Bundle, tmp_path: Path, qbpass_run: Run
) -> None:
    report = probed(qbpass_run, tmp_path, tiny_bundle.folder, *TWO_THREADS, "--only", "rows", "--past", 20)
    graphs = {case["graph"] for case in report["cases"]}
    assert graphs == {"frozen", "active"}
    # In the active graph rows are batch entries of the product with the values: nothing falsifies them there.
    active = [case for case in report["cases"] if case["graph"] == "active"]
    assert "FusedMatMul" in {case["operator"] for case in active}
    assert [case["operator"] for case in active if case["verdict"] == "false"] == []
    assert [curve["graph"] for curve in report["curves"]] == ["frozen", "active"]
    assert [point["queries"] for point in report["curves"][1]["points"]] == [1, 2, 3, 4]


def test_json_goes_alone_to_stdout(cache: Path, tiny_eager: Path, qbpass_run: Run) -> None:
    answer = qbpass_run("probe", tiny_eager, *TWO_THREADS, "--no-curve", "--only", "Softmax,rows", "--json", "-")
    assert json.loads(answer.out)["model"] == str(tiny_eager)


def test_what_was_left_out_is_said_with_the_reason(cache: Path, tiny_eager: Path, qbpass_run: Run) -> None:
    out = qbpass_run("probe", tiny_eager, *TWO_THREADS, "--no-curve", "--only", "Softmax,rows").out
    assert "left out: " in out
    assert "which are exact" in out
    assert "trials prove nothing true" in out


@pytest.fixture
def crashing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`crashing(function)`: in processes started from now on, that function of the probes kills its process."""

    def arrange(function: str) -> None:
        module, _, name = function.rpartition(".")
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "crash.py").write_text(
            f"import os, signal, {module}\n"
            "def die(*arguments, **options):\n"
            "    os.kill(os.getpid(), signal.SIGSEGV)\n"
            f"{module}.{name} = die\n"
        )
        monkeypatch.setattr("qbpass.probe_process._CHILD", "import crash; from qbpass.probe_worker import work; work()")
        monkeypatch.syspath_prepend(str(tmp_path / "site"))

    return arrange


def test_a_kernel_that_crashes_is_one_unknown_and_the_others_are_answered(
    cache: Path, tmp_path: Path, qbpass_run: Run, crashing: Callable[[str], None]
) -> None:
    crashing("qbpass.admission.probes.falsify.write_witness")  # whatever is false crashes
    for more in ((), ("--fresh",)):
        report = probed(
            qbpass_run, tmp_path, "builtin:operators", *TWO_THREADS, "--only", "DynamicQuantizeLinear", *more
        )
        assert [case["probe"] for case in report["cases"]] == ["rows", "position", "coupling"]
        assert {case["verdict"] for case in report["cases"]} == {"unknown"}
        refused = {case["probe"]: case["reason"] for case in report["cases"] if case["refused"]}
        assert refused.keys() == {"rows", "coupling"}
        assert all("SIGSEGV" in reason for reason in refused.values())


def test_a_graph_that_crashes_the_worker_is_one_line(
    cache: Path, tiny_eager: Path, mistake: Mistake, crashing: Callable[[str], None]
) -> None:
    crashing("qbpass.admission.placement.observe_placement")
    assert "SIGSEGV) while observing placement" in mistake("probe", tiny_eager, *TWO_THREADS)


def test_a_witness_that_crashes_the_worker_is_one_line(
    cache: Path, tmp_path: Path, qbpass_run: Run, mistake: Mistake, crashing: Callable[[str], None]
) -> None:
    only = ("--only", "DynamicQuantizeLinear,coupling")
    report = probed(qbpass_run, tmp_path, "builtin:operators", *TWO_THREADS, *only)
    crashing("qbpass.admission.probes.replay.run_calls")
    assert "SIGSEGV" in mistake("probe", "--replay", report["cases"][0]["witness"])


def test_options_that_can_not_be_used_are_one_line(
    cache: Path, tiny_eager: Path, tmp_path: Path, mistake: Mistake
) -> None:
    assert "either a MODEL" in mistake("probe")
    assert "either a MODEL" in mistake("probe", tiny_eager, "--replay", tmp_path)
    assert "Sotfmax" in mistake("probe", tiny_eager, *TWO_THREADS, "--no-curve", "--only", "Sotfmax")
    assert "no witness" in mistake("probe", "--replay", tmp_path)
    assert "context" in mistake("probe", tiny_eager, *TWO_THREADS, "--past", 10**6)
    assert "does not exist" in mistake("probe", tmp_path / "nothing.onnx")
    assert "unknown provider" in mistake("probe", tiny_eager, "--provider", "abacus")


def test_a_bundle_of_another_recipe_is_refused(cache: Path, tiny_bundle: Bundle, mistake: Mistake) -> None:
    assert "threads" in mistake("probe", tiny_bundle.folder, "--threads", 1, "--no-curve")
