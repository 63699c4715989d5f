"""`qbpass admit`: which graph it looked at, what its JSON holds, and a table that can be read."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import broken_models
import hostile_names
import onnx
import onnxruntime
import pytest

from qbpass.admission.facts import AttentionFacts
from qbpass.admission.report import AdmissionReport, Diagnostic, SiteReport
from qbpass.admission_table import show_admission
from qbpass.models.loading import load_graph
from qbpass.reports.admission_document import admission_document
from qbpass.reports.groups import grouped
from qbpass.reports.looked_at import LookedAt
from qbpass.reports.plain import plain, visible
from qbpass.rewrites.bundle import Bundle

Run = Callable[..., Any]


@pytest.fixture
def model(tiny_eager: Path, tmp_path: Path) -> Path:
    """An export of one's own."""
    return Path(shutil.copytree(tiny_eager, tmp_path / "model"))


def site(
    layer: int, *codes: str, name: str | None = None, kind: str = "gqa", message: str = "because", **facts: Any
) -> SiteReport:
    name = name or f"attention.{layer}"
    known = {"heads": 4, "kv_heads": 2, "head_dim": 8, "value_dim": 8, "scale": 0.5, "tensors": {}} | facts
    diagnostics = tuple(Diagnostic(code, name, message.format(layer=layer)) for code in codes)
    return SiteReport(name, kind, layer, None, diagnostics, AttentionFacts(**known))


def shown(
    capsys: pytest.CaptureFixture[str], *sites: SiteReport, graph: tuple[Diagnostic, ...] = (), **options: Any
) -> str:
    capsys.readouterr()
    show_admission(AdmissionReport("m.onnx", sites, graph), **{"every_site": False} | options)
    return capsys.readouterr().out


# Which graph


def test_as_exported_needs_neither_weights_nor_onnx_runtime_and_says_so(model: Path) -> None:
    (model / "model.onnx.data").unlink()
    arguments = [
        "admit",
        str(model),
        "--as-exported",
        "--html",
        str(model / "page.html"),
        "--json",
        str(model / "a.json"),
    ]
    code = f"import sys; from qbpass.cli import run; print(run({arguments!r}), 'onnxruntime' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *table, last = answer.stdout.splitlines()
    assert last == "0 False"
    assert "as exported" in table[-1]
    assert json.loads((model / "a.json").read_text())["graph"] == {
        "state": "as_exported",
        "onnxruntime": None,
        "provider": None,
    }
    assert "as exported" in (model / "page.html").read_text(encoding="utf-8")


def test_the_graph_that_counts_is_looked_at_where_nothing_else_is_asked_for(model: Path, qbpass_run: Run) -> None:
    answer = qbpass_run("admit", model, "--json", model / "a.json", "--threads", 2)
    graph = json.loads((model / "a.json").read_text())["graph"]
    assert graph == {"state": "frozen", "onnxruntime": onnxruntime.__version__, "provider": "cpu"}
    assert f"frozen by onnxruntime {onnxruntime.__version__}" in answer.out.splitlines()[-1]


def test_a_bundles_own_graph_is_the_frozen_one(tiny_bundle: Bundle, qbpass_run: Run) -> None:
    answer = qbpass_run("admit", tiny_bundle.folder, "--as-exported", "--json", "-")
    assert json.loads(answer.out)["graph"]["state"] == "frozen"


# Exit codes and streams


def test_a_graph_that_is_no_decoder_is_a_report_with_its_problem(model: Path, qbpass_run: Run) -> None:
    broken_models.no_kv_inputs(model)
    answer = qbpass_run("admit", model, "--json", model / "a.json", "--html", model / "a.html")
    report = json.loads((model / "a.json").read_text())
    codes = {diagnostic["code"] for diagnostic in report["diagnostics"]}
    assert answer.code == 1
    assert report["admitted"] is False
    assert {problem["code"] for problem in report["interface"]["problems"]} <= codes
    assert codes >= {"NO_ATTENTION_FOUND", "NO_KV_CACHE"}
    assert all(f"the graph: {code}: " in answer.out for code in codes)
    assert "NO_KV_CACHE" in (model / "a.html").read_text(encoding="utf-8")


def test_the_page_alone_goes_to_stdout(tiny_eager: Path, qbpass_run: Run) -> None:
    answer = qbpass_run("admit", tiny_eager, "--as-exported", "--html", "-")
    assert answer.code == 0
    assert answer.out.startswith("<!DOCTYPE html>")
    assert answer.out.rstrip().endswith("</html>")


def test_stdout_holds_one_document(tiny_eager: Path, mistake: Callable[..., str]) -> None:
    assert "--json - and --html -" in mistake("admit", tiny_eager, "--as-exported", "--html", "-", "--json", "-")


def test_as_exported_a_provider_need_not_be_there(tiny_eager: Path, qbpass_run: Run) -> None:
    assert qbpass_run("admit", tiny_eager, "--as-exported", "--provider", "openvino").code == 0


# JSON


def test_the_json_names_inputs_and_outputs_by_their_part(tiny_eager: Path, qbpass_run: Run) -> None:
    report = json.loads(qbpass_run("admit", tiny_eager, "--as-exported", "--json", "-").out)
    graph = onnx.load(tiny_eager / "model.onnx", load_external_data=False).graph
    interface = report["interface"]
    parts = ("input_ids", "attention_mask", "position_ids")
    pairs = [pair[name] for pair in interface["kv"] for name in ("past_key", "past_value")]
    named = [interface[part]["name"] for part in parts] + pairs
    assert sorted(named) == sorted(value.name for value in graph.input)
    presents = [pair[name] for pair in interface["kv"] for name in ("present_key", "present_value")]
    assert sorted([interface["logits"]["name"], *presents]) == sorted(value.name for value in graph.output)
    assert interface["problems"] == interface["others"] == interface["states"] == interface["cross_kv"] == []
    assert [site["facts"]["tensors"]["past_key"]["name"] for site in report["sites"]] == [
        pair["past_key"] for pair in interface["kv"]
    ]


def test_whatever_evidence_holds_is_written(tiny_eager: Path) -> None:
    evidence = {"nan": float("nan"), "bytes": b"\xff", "set": {2, 1}, "deep": [{"inf": float("inf")}]}
    refused = SiteReport("attention.0", "gqa", 0, None, (Diagnostic("GQA_RATIO", "attention.0", "m", evidence),))
    endless = site(1, scale=float("inf"))
    decoder = load_graph(tiny_eager, "ignored")
    report = AdmissionReport("m", (refused, endless))
    found = admission_document(report, decoder, LookedAt.of(decoder, tiny_eager)).to_json()
    text = json.dumps(found, allow_nan=False)
    assert found["sites"][0]["diagnostics"][0]["evidence"] == {
        "nan": "nan",
        "bytes": "\ufffd",
        "set": [1, 2],
        "deep": [{"inf": "inf"}],
    }
    assert found["sites"][1]["facts"]["scale"] is None
    assert json.loads(text) == found


def test_numpys_numbers_are_plain_numbers() -> None:
    import numpy as np

    assert plain({"a": np.int64(3), "b": np.array([[1, 2]]), "c": np.float32(0.5)}) == {"a": 3, "b": [[1, 2]], "c": 0.5}


# The table


def test_equal_sites_share_a_row_also_where_others_lie_between() -> None:
    sites = [site(layer, *(["SLIDING_WINDOW"] if layer % 2 else [])) for layer in range(8)]
    assert [group.label for group in grouped(sites)] == ["layers 0, 2, …, 6", "layers 1, 3, …, 7"]
    assert [group.label for group in grouped(sites, every_site=True)] == [f"attention.{n}" for n in range(8)]


@pytest.mark.parametrize(
    ("layers", "label"),
    [
        ([0, 1, 2, 5], "layers 0–2, 5"),
        ([3, 4], "layers 3–4"),
        ([1, 3], "layers 1, 3"),
        ([-1, -1], "2 of no layer"),
        ([0, 0, 1], "layers 0–1 (3 sites)"),
        ([0, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18], "layers 0, 2–3, 5–6, 8–9, 11–12, 14–15, … (13 layers)"),
    ],
)
def test_a_rows_label_says_which_layers_it_stands_for(layers: list[int], label: str) -> None:
    sites = [site(layer, name=f"attention.{layer}.{at}") for at, layer in enumerate(layers)]
    assert [group.label for group in grouped(sites)] == [label]


def test_attentions_of_two_sorts_over_the_same_layers_are_told_apart() -> None:
    sites = [site(layer, name=f"{sort}.{layer}") for layer in (0, 1) for sort in ("attention", "cross_attention")]
    assert [group.label for group in grouped(sites)] == ["layers 0–1", "cross_attention, layers 0–1"]
    loose = [site(-1, name=f"cross_attention.{node}") for node in "ab"]
    assert [group.label for group in grouped(loose)] == ["cross_attention, 2 of no layer"]


def test_a_column_is_there_where_it_says_something(capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {"tensors": {"q": "a", "k": "b", "v": "c"}}
    alike, halves = {"a": "float32", "b": "float32", "c": "float32"}, {"a": "float32", "b": "float16", "c": "float16"}
    usual = shown(capsys, site(0, dtypes=alike, **tensors)).splitlines()[0].split()
    wide = shown(capsys, site(0, value_dim=16)).splitlines()[0].split()
    typed = shown(capsys, site(0, dtypes=halves, **tensors))
    assert "dv" not in usual
    assert "type" not in usual
    assert "dv" in wide
    assert "type" in typed.splitlines()[0].split()
    assert "float32/float16" in typed


def test_one_reason_is_given_once_for_the_sites_that_share_it(capsys: pytest.CaptureFixture[str]) -> None:
    sites = [site(layer, "SOFTCAP", message="node of layer {layer}") for layer in range(30)]
    brief, full = shown(capsys, *sites), shown(capsys, *sites, every_site=True)
    assert brief.count("SOFTCAP: node of layer") == 1
    assert "layers 0–29: SOFTCAP: node of layer 0 (attention.0; --all shows each)" in brief
    assert full.count("SOFTCAP: node of layer") == 30


def test_that_all_are_refused_for_one_reason_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    hint = "Every site is refused for this one reason"
    assert hint in shown(capsys, site(0, "SOFTCAP"), site(1, "SOFTCAP"))
    assert hint not in shown(capsys, site(0, "SOFTCAP"), site(1, "SINKS"))
    assert hint not in shown(capsys, site(0, "SOFTCAP", "SINKS"), site(1, "SOFTCAP", "SINKS"))
    assert hint not in shown(capsys, site(0, "SOFTCAP"), site(1))


def test_diagnostics_of_the_graph_come_before_those_of_sites(capsys: pytest.CaptureFixture[str]) -> None:
    said = shown(capsys, site(0, "SOFTCAP"), graph=(Diagnostic("LAST_TOKEN_LOGITS", "m", "why"),))
    assert said.index("the graph: LAST_TOKEN_LOGITS: why") < said.index("attention.0: SOFTCAP: because")


def test_a_long_reason_is_folded_on_a_terminal_and_one_line_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = " ".join(f"word{n}" for n in range(60))
    assert f"attention.0: SOFTCAP: {words}\n" in shown(capsys, site(0, "SOFTCAP", message=words))

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("TERM", "xterm")
    show_admission(AdmissionReport("m", (site(0, "SOFTCAP", message=words),)), every_site=False)
    lines = [line.rstrip() for line in terminal.getvalue().splitlines()]
    start = next(at for at, line in enumerate(lines) if line.startswith("attention.0: SOFTCAP: "))
    end = start + 1
    while lines[end].startswith("    word"):
        end += 1
    assert end - start > 5
    assert max(map(len, lines[start:end])) <= 70
    assert " ".join(line.strip() for line in lines[start:end]) == f"attention.0: SOFTCAP: {words}"


def test_names_of_tensors_move_no_terminal(model: Path, qbpass_run: Run) -> None:
    broken_models.capped_scores(model)
    hostile_names.rename_everything(model)
    answer = qbpass_run("admit", model, "--as-exported", "--all")
    assert answer.code == 1
    assert "SOFTCAP" in answer.out
    assert not set("\x1b\x07\r\u202e") & set(answer.out)


def test_what_can_not_be_seen_is_shown_as_an_escape() -> None:
    assert visible("a\x1b[31m\u202eb\n") == "a\\x1b[31m\\u202eb\\x0a"
    assert visible("x" * 1000, 9) == "xxxx…xxxx"
    assert visible("ünïcödé 漢字") == "ünïcödé 漢字"
