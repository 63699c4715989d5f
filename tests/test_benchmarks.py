"""The benchmark scripts run, and what they compare is equal. Speeds are not asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from onnxruntime import get_available_providers

from qbpass.models.loading import load_decoder
from qbpass.models.session import SessionSpec
from qbpass.rewrites.bundle import Bundle
from qbpass.rewrites.bundle_writer import write_bundle

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def run_script(name: str, *arguments: str, json_file: Path) -> dict[str, Any]:
    """The results of a script run as a user runs it."""
    command = [sys.executable, str(BENCHMARKS / name), *arguments, "--json", str(json_file)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    results: dict[str, Any] = json.loads(json_file.read_text())
    return results


def test_both_repaired_layouts_of_a_site_are_serial_and_native_queries_are_not(tiny_eager: Path, tmp_path: Path):
    model = ["--model", str(tiny_eager), "--n", "61", "--rounds", "2", "--threads", "1"]
    results = run_script("attention_layouts.py", *model, json_file=tmp_path / "results.json")
    (case,) = results["cases"]
    assert case["geometry"] == "4/2 d 16"
    assert case["equal_to_serial"]["qb"]
    assert case["equal_to_serial"]["pq"]
    assert case["qb_equals_pq"]
    assert not case["equal_to_serial"]["native"]
    assert [claim["name"] for claim in case["claims"]] == ["QB/native", "PQ/QB"]
    assert all(claim["ratio"]["median"] > 0 for claim in case["claims"])


def test_a_large_models_graph_is_admitted_and_planned_without_its_weights(tmp_path: Path):
    results = run_script("large_graph.py", "--layers", "3", json_file=tmp_path / "results.json")
    assert results["sites admitted"] == 3
    assert results["nodes"] > 3 * 50


def test_a_bundle_of_a_large_int4_graph_holds_none_of_its_weights(tmp_path: Path):
    small = ["--int4", "--layers", "2", "--vocabulary", "1024"]
    results = run_script("large_graph.py", *small, json_file=tmp_path / "results.json")
    assert results["sites rewritten"] == 2
    assert results["weight file bytes"] > 250 * 2**20
    assert results["bytes written that are no graph"] == 0
    assert results["bundle bytes"] < 2**20


def test_every_layout_of_a_bundle_is_compared_before_it_is_timed(tiny_bundle: Bundle, tmp_path: Path):
    arguments = [str(tiny_bundle.folder), "--past", "9,30", "--rounds", "2"]
    (found,) = run_script("layout_costs.py", *arguments, json_file=tmp_path / "results.json")["bundles"]
    assert found["refused"] == {}
    assert [case["past"] for case in found["cases"]] == [9, 30]
    for case in found["cases"]:
        assert case["layouts"] == ["MQ", "QB", "PQ", "GS"]
        assert case["equal"] == {f"{name} q={q}": True for name in ("QB", "PQ", "GS") for q in (1, 2, 3, 4)}
        assert all(cost > 0 for cost in case["costs"].values())
        assert [claim["name"] for claim in case["claims"]] == ["GS q=4 / QB q=4", "GS q=4 / PQ q=4"]


def test_the_masks_that_pass_are_named(tiny_eager: Path, tmp_path: Path):
    spec = SessionSpec(threads=2)
    bundle = write_bundle(load_decoder(tiny_eager), tmp_path / "bundle", "qb", spec, prefill="one")[0]
    prompts = tmp_path / "prompts.jsonl"
    # Long enough for every phase to have rows that differ: a short request may pass without a bit it does not use.
    prompts.write_text(json.dumps({"id": "a", "token_ids": [*range(5, 26)]}) + "\n")
    arguments = [str(bundle.folder), "--prompts", str(prompts), "--tokens", "16"]
    results = run_script("phase_masks.py", *arguments, json_file=tmp_path / "results.json")
    assert [entry["mask"] for entry in results["masks"]] == list(range(16))
    assert results["minimal_for_target"] == [3]
    assert results["minimal_for_target_and_draft"] == [15]


@pytest.mark.slow
def test_every_layout_phase_and_width_in_one_process_gives_the_references_tokens(
    tiny_bundle: Bundle, tiny_eager: Path, tmp_path: Path
):
    small = ["--model", str(tiny_eager), "--layouts", "--rounds", "1", "--prompt", "8", "--tokens", "8"]
    results = run_script("memory.py", str(tiny_bundle.folder), *small, json_file=tmp_path / "results.json")
    assert results["equal_to_frozen"] == dict.fromkeys(("plain", "frozen", "engine", "phases", "layouts"), True)
    assert [claim["name"] for claim in results["claims"]] == [
        f"{form} / {base}" for form in ("engine", "phases", "layouts") for base in ("plain", "frozen")
    ]


SMALL = ["--threads", "2", "--tokens", "6", "--prompts", "1", "--replay-rows", "4", "--repeats", "1"]


def test_the_check_of_a_gpu_machine_rehearses_every_step_on_the_cpu(tiny_eager: Path, tmp_path: Path):
    files = ["--json", str(tmp_path / "results.json"), "--text", str(tmp_path / "results.txt")]
    short = ["--no-probes", "--no-half", "--no-genai", "--in-process", *SMALL, *files]
    command = [sys.executable, str(BENCHMARKS / "cuda.py"), str(tiny_eager), "--provider", "cpu", *short]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["verified_on_a_gpu"] is False
    steps = results["steps"]
    # Sums over a bucket's masked keys are other sums here, and PQ slices: refused, with what was seen.
    assert {step["status"] for step in steps if step["step"] != "graphs"} == {"ok"}
    graphs = [step for step in steps if step["step"] == "graphs"]
    assert [step["status"] for step in graphs] == ["refused", "refused"]
    assert graphs[0]["found"]["trials"][0]["witness"]["max_abs_difference"] > 0
    of_a_bundle = ["rewrite", "serial again", "device cache", "repeated calls", "faults", "graphs", "arms"]
    of_a_model = ["placement", "admission", "tf32"]
    assert [step["step"] for step in steps] == ["machine", "session", "export", *of_a_model, *of_a_bundle, *of_a_bundle]
    for step in steps:
        if step["step"] == "arms":
            (repaired,) = (arm for arm in step["found"]["arms"].values() if arm["repaired"] is True)
            assert repaired["equal"] == repaired["endpoints"] == 1
            assert repaired["logit_rows"] == repaired["logit_rows_equal"] > 0
        if step["step"] == "faults":
            assert step["found"]["faults_found"] == step["found"]["faults_injected"] > 0
    assert "C_PQ" in (tmp_path / "results.txt").read_text()


def test_the_check_of_a_gpu_machine_goes_on_behind_a_step_that_dies_and_says_so(tmp_path: Path):
    """Each step is a process of its own: here one crashes, one hangs, and one is no step."""
    questions = """
import json, signal, sys
from gpu_check import outcome
def asked(code, seconds):
    run = outcome.subprocess.run
    outcome.subprocess.run = lambda command, **more: run([sys.executable, "-c", code], **more)
    try:
        return outcome.answered_apart("arms", {"name": "m"}, seconds).to_json()
    finally:
        outcome.subprocess.run = run
crash = asked("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 60)
hang = asked("import time; time.sleep(60)", 1)
none = outcome.answered_apart("no such step", {"name": "m"}, 60).to_json()
print(json.dumps([crash, hang, none]))
"""
    ended = subprocess.run(
        [sys.executable, "-c", questions], capture_output=True, text=True, check=True, cwd=BENCHMARKS
    )
    outcomes = json.loads(ended.stdout)
    assert {outcome["status"] for outcome in outcomes} == {"failed"}
    crash, hang, none = (outcome["message"] for outcome in outcomes)
    assert "SIGSEGV" in crash
    assert "no end within 1 s" in hang
    assert "KeyError" in none


@pytest.mark.skipif("CUDAExecutionProvider" in get_available_providers(), reason="this onnxruntime may have a GPU")
def test_the_check_of_a_gpu_machine_says_in_one_line_that_there_is_no_provider(tiny_eager: Path):
    command = [sys.executable, str(BENCHMARKS / "cuda.py"), str(tiny_eager), "--in-process"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    (line,) = ended.stderr.strip().splitlines()
    assert line.startswith("cuda.py: CUDAExecutionProvider is not in this onnxruntime")


@pytest.mark.slow
def test_a_server_under_load_gives_the_librarys_answers_and_ends_clean(tiny_bundle: Bundle, tmp_path: Path):
    short = ["--seconds", "3", "--clients", "4", "--rounds", "2", "--tokens", "24", "--engines", "2"]
    results = run_script("server_load.py", str(tiny_bundle.folder), *short, json_file=tmp_path / "results.json")
    assert results["overhead"]["equal"]
    load = results["load"]
    assert load["wrong"] == []
    assert load["stuck_clients"] == []
    assert (load["left_in_queue"], load["left_running"]) == (0, 0)
    assert load["done"]["whole"] + load["done"]["stream"] > 0
    assert not any("failed" in name for name in load["outcomes"])
    assert results["killed"] == {"cut": True, "equal": True, "exit_code": 0}


def test_a_step_is_split_into_its_parts_for_every_bundle(tiny_bundle: Bundle, tmp_path: Path):
    sizes = ["--rounds", "1", "--prompt", "60", "--tokens", "12"]
    folders = [str(tiny_bundle.folder)] * 2
    results = run_script("step_overhead.py", *folders, *sizes, json_file=tmp_path / "results.json")
    (found,) = results["bundles"].values()
    assert found["equal_to_R"]
    assert found["targets"]["R"]["steps"] == 11
    for target in found["targets"].values():
        assert set(target["ms"]) == {"ort", "binding", "drafting", "acceptance"}
        assert all(milliseconds >= 0 for milliseconds in target["ms"].values())
        assert target["ms"]["ort"] > 0
    assert found["targets"]["block"]["ms"]["drafting"] > 0


def test_two_sessions_that_take_turns_say_what_each_says_alone(tiny_bundle: Bundle, tmp_path: Path):
    sizes = ["--rounds", "1", "--past", "9", "--calls", "5", "--draft", str(tiny_bundle.folder)]
    results = run_script(
        "interleaved_sessions.py", str(tiny_bundle.folder), *sizes, json_file=tmp_path / "results.json"
    )
    assert results["equal"]
    assert [claim["ratio"]["median"] > 0 for claim in results["claims"]] == [True] * 4
    assert [claim["at_most"] is None for claim in results["claims"]] == [False, False, True, True]


def test_a_folder_that_is_no_bundle_is_refused_in_one_line(tmp_path: Path):
    command = [sys.executable, str(BENCHMARKS / "step_overhead.py"), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    (line,) = ended.stderr.strip().splitlines()
    assert line.startswith("step_overhead.py: ")
    assert "is not a bundle" in line


def test_long_requests_are_compared_and_memory_is_watched(tiny_bundle: Bundle, tmp_path: Path):
    sizes = ["--generate", "40", "--prompt", "60", "--requests", "20"]
    results = run_script("endurance.py", str(tiny_bundle.folder), *sizes, json_file=tmp_path / "results.json")
    assert [(entry["generated"], entry["equal"]) for entry in results["long"]] == [(40, True), (64, True)]
    assert results["many"]["requests"] == 20
    assert results["many"]["largest_change"] >= 0


def test_sampled_outputs_are_compared_with_and_without_speculation_and_with_a_plain_loop(
    tiny_bundle: Bundle, tmp_path: Path
):
    few = ["--seeds", "3", "--tokens", "12"]
    results = run_script("sampling_equality.py", str(tiny_bundle.folder), *few, json_file=tmp_path / "results.json")
    assert results["on_equals_off"] == results["plain_equals_off"] == results["outputs"] == 3 * 3 * 4
    assert results["from_an_empty_cache"] == {"tried": 12, "equal": 12}
    assert all(cell["accepted"] > 0 and cell["rejected"] > 0 for cell in results["cells"])


def test_drafters_are_replayed_over_a_record_and_the_record_can_be_read_again(tiny_bundle: Bundle, tmp_path: Path):
    few = ["--tokens", "24", "--rounds", "1", "--past", "8,16", "--recorded", str(tmp_path / "r.jsonl")]
    results = run_script("drafting.py", str(tiny_bundle.folder), *few, json_file=tmp_path / "results.json")
    policies = ("fixed k=1", "fixed k=3", "adaptive")
    assert list(results["arms"]) == [f"{drafter}, {each}" for drafter in ("ngram", "suffix") for each in policies]
    again = run_script("drafting.py", str(tiny_bundle.folder), *few, json_file=tmp_path / "again.json")
    assert results["acceptance_by_grade"] == again["acceptance_by_grade"]
    fixed = [name for name in results["arms"] if "fixed" in name]
    rounds = ("tokens_per_round", "acceptance", "mean_k", "undrafted_rounds")
    assert all(results["arms"][name][key] == again["arms"][name][key] for name in fixed for key in rounds)


def test_every_form_of_a_self_draft_is_measured_and_compared(
    tiny_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("QBPASS_CACHE", str(tmp_path / "cache"))
    few = ["--limit", "2", "--tokens", "12", "--threads", "2"]
    results = run_script("self_draft.py", str(tiny_bundle.folder), *few, json_file=tmp_path / "results.json")
    assert len(results["calls"]) == 4
    assert {(entry["bits"], entry["block"]) for entry in results["candidates"]} >= {(8, 32), (4, 32), (8, 64)}
    for entry in results["candidates"]:
        assert sorted(entry["right"], reverse=True) == entry["right"]
        assert entry["equal_to_R"] in (True, None)
        assert (entry["equal_to_R"] is None) == (entry["proposals"] == 0)
    assert results["spinning"].keys() == {"stops", "spins"}
