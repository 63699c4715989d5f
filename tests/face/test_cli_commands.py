"""The five commands, end to end on the tiny model."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import broken_models
import pytest

from qbpass import cli
from qbpass.models.export import cached_export
from qbpass.models.session import SessionSpec
from qbpass.models.tokenizer import TextCodec
from qbpass.rewrites.bundle import Bundle, open_bundle
from qbpass.runtime.engine import Engine, Request
from qbpass.runtime.serial_target import SerialTarget

Run = Callable[..., Any]
PROMPT, TOKENS = "one two one two", 40


@pytest.fixture(scope="module")
def serial(tiny_bundle: Bundle) -> tuple[int, ...]:
    """The reference's own tokens."""
    target = SerialTarget.from_frozen(tiny_bundle.reference, SessionSpec(threads=2))
    ids = TextCodec(tiny_bundle.reference.tokenizer_files).encode_prompt(PROMPT)
    stops = frozenset(tiny_bundle.reference.eos_token_ids)
    return Engine(target).generate(Request(tuple(ids), TOKENS, stops))[0].token_ids


def test_export_writes_a_folder_that_admit_admits(tmp_path: Path, qbpass_run: Run) -> None:
    assert qbpass_run("export", "builtin:tiny", tmp_path / "tiny").code == 0
    answer = qbpass_run("admit", tmp_path / "tiny", "--json", tmp_path / "a.json")
    assert answer.code == 0
    assert "layers 0–2" in answer.out
    report = json.loads((tmp_path / "a.json").read_text())
    assert [site["layer"] for site in report["sites"]] == [0, 1, 2]
    for site in report["sites"]:
        assert site["admitted"] is True
        assert {"name", "kind", "layer", "admitted", "diagnostics"} <= site.keys()


def test_admit_takes_a_bundle_and_prints_json_alone_to_stdout(tiny_bundle: Bundle, qbpass_run: Run) -> None:
    answer = qbpass_run("admit", tiny_bundle.folder, "--json", "-")
    assert answer.code == 0
    assert len(json.loads(answer.out)["sites"]) == 3


def test_equal_sites_share_a_row_unless_all_are_asked_for(tiny_bundle: Bundle, qbpass_run: Run) -> None:
    assert qbpass_run("admit", tiny_bundle.folder, "--all").out.count("decomposed") == 3
    assert qbpass_run("admit", tiny_bundle.folder).out.count("decomposed") == 1


def test_a_refused_site_is_exit_code_1_with_its_reason_from_admit_and_rewrite(
    tiny_eager: Path, tmp_path: Path, qbpass_run: Run
) -> None:
    model = Path(shutil.copytree(tiny_eager, tmp_path / "model"))
    broken_models.capped_scores(model)
    admitted = qbpass_run("admit", model, "--json", tmp_path / "a.json")
    report = json.loads((tmp_path / "a.json").read_text())
    assert [site["admitted"] for site in report["sites"]] == [False, True, True]
    rewritten = qbpass_run("rewrite", model, tmp_path / "out")
    for answer in (admitted, rewritten):
        assert answer.code == 1
        for diagnostic in report["sites"][0]["diagnostics"]:
            assert f"{diagnostic['code']}: {diagnostic['message']}" in answer.out
    assert not (tmp_path / "out").exists()


def test_rewrite_says_which_forms_were_false_and_where_the_bundle_lies(
    tiny_eager: Path, tmp_path: Path, qbpass_run: Run
) -> None:
    answer = qbpass_run("rewrite", tiny_eager, tmp_path / "b", "--threads", 2, "--layout", "qb")
    assert answer.code == 0
    assert "layout qb" in answer.out
    assert ": unknown, " in answer.out
    assert str(tmp_path / "b") in answer.out
    assert (tmp_path / "b" / "qbpass.json").is_file()
    data = tiny_eager.resolve() / "model.onnx.data"
    assert f"  {data}: {data.stat().st_size / 2**20:,.1f} MiB of weights, read where they are" in answer.out


def test_a_bundle_is_rewritten_into_one_that_holds_its_weights(
    tiny_bundle: Bundle, tmp_path: Path, qbpass_run: Run
) -> None:
    answer = qbpass_run(
        "rewrite", tiny_bundle.folder, tmp_path / "b", "--threads", 2, "--layout", "pq", "--copy-weights"
    )
    assert answer.code == 0
    assert "layout pq" in answer.out
    assert "model.onnx.data: " in answer.out
    assert "of weights, in the bundle" in answer.out
    bundle = open_bundle(tmp_path / "b")
    assert bundle.weights.elsewhere == {}
    assert bundle.manifest.recipe.weights == tiny_bundle.manifest.recipe.weights


@pytest.fixture
def no_qb_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which every form of QB is false; PQ is tried as ever."""
    from qbpass.rewrites import planner

    choose = planner.choose_form

    def choose_here(falsifier: Any, layout: str) -> Any:
        if layout == "pq":
            return choose(falsifier, "pq")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planner, "FORMS", (("rows", "rows"),))
            patch.setattr(planner, "tail_rule", lambda *arguments: None)
            return choose(falsifier, "qb")

    monkeypatch.setattr(planner, "choose_form", choose_here)


@pytest.mark.usefixtures("no_qb_form")
def test_auto_takes_pq_where_every_qb_form_is_false(tiny_eager: Path, tmp_path: Path, qbpass_run: Run) -> None:
    answer = qbpass_run("rewrite", tiny_eager, tmp_path / "b", "--threads", 2)
    assert answer.code == 0
    assert "QB: QK rows, AV rows: false" in answer.out
    assert "auto: pq: not proven wrong here" in answer.out
    assert json.loads((tmp_path / "b" / "qbpass.json").read_text())["layout"] == "pq"


@pytest.mark.usefixtures("no_qb_form")
def test_a_layout_that_is_false_here_is_refused_and_nothing_is_written(
    tiny_eager: Path, tmp_path: Path, qbpass_run: Run
) -> None:
    answer = qbpass_run("rewrite", tiny_eager, tmp_path / "c", "--threads", 2, "--layout", "qb")
    assert answer.code == 1
    assert "every QB form" in answer.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("draft", ["none", "ngram", "suffix"])
@pytest.mark.parametrize("policy", ["adaptive", "fixed"])
def test_generate_returns_the_references_tokens_with_and_without_drafting(
    policy: str, draft: str, tiny_bundle: Bundle, serial: tuple[int, ...], tmp_path: Path, qbpass_run: Run
) -> None:
    arguments = ["--threads", 2, "--max-new-tokens", TOKENS, "--draft", draft, "--json", tmp_path / "g.json"]
    answer = qbpass_run("generate", tiny_bundle.folder, "-p", PROMPT, "--policy", policy, *arguments)
    result = json.loads((tmp_path / "g.json").read_text())
    assert answer.code == 0
    assert tuple(result["endpoint"]["token_ids"]) == serial
    assert result["endpoint"]["length"] == len(serial)
    assert result["text"] == TextCodec(tiny_bundle.reference.tokenizer_files).decode(serial)
    assert answer.out == result["text"] + "\n"
    if draft == "none" or policy == "fixed":  # what the adaptive one proposes is a matter of seconds
        assert (result["trace"]["proposed"] > 0) == (draft != "none")
    assert "tokens/s" in answer.err


def test_generate_writes_a_line_for_every_round(tiny_bundle: Bundle, tmp_path: Path, qbpass_run: Run) -> None:
    asked = ["generate", tiny_bundle.folder, "--token-ids", "5,6,5,6,5", "--max-new-tokens", 9, "--threads", 2]
    plain = qbpass_run(*asked, "--json", tmp_path / "plain.json")
    told = qbpass_run(*asked, "--json", tmp_path / "told.json", "--trace", tmp_path / "trace.jsonl")
    assert plain.code == told.code == 0
    result = json.loads((tmp_path / "told.json").read_text())
    assert result["endpoint"] == json.loads((tmp_path / "plain.json").read_text())["endpoint"]
    events = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["begin", *["round"] * result["trace"]["rounds"], "end"]


def test_generate_reads_a_prompt_from_stdin(
    tiny_bundle: Bundle, qbpass_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["generate", tiny_bundle.folder, "--threads", 2, "--max-new-tokens", 8, "-p"]
    wanted = qbpass_run(*arguments, PROMPT).out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PROMPT.encode())))
    assert qbpass_run(*arguments, "-").out == wanted


def test_a_model_without_a_tokenizer_takes_and_gives_token_ids(
    tiny_eager: Path, tmp_path: Path, qbpass_run: Run, mistake: Callable[..., str]
) -> None:
    model, bundle, prompts = tmp_path / "model", tmp_path / "bundle", tmp_path / "p.jsonl"
    model.mkdir()
    for name in ("model.onnx", "model.onnx.data", "config.json"):
        shutil.copyfile(tiny_eager / name, model / name)
    assert qbpass_run("rewrite", model, bundle, "--threads", 2).code == 0
    common = ["--threads", 2, "--max-new-tokens", 5]
    answer = qbpass_run("generate", bundle, *common, "--token-ids", "1, 2,3", "--json", tmp_path / "g.json")
    ids = json.loads((tmp_path / "g.json").read_text())["endpoint"]["token_ids"]
    assert [int(text) for text in answer.out.split()] == ids
    assert "tokenizer.json" in mistake("generate", bundle, *common, "-p", "x")
    prompts.write_text('{"id": "a", "token_ids": [1, 2, 3]}\n')
    assert qbpass_run("qualify", bundle, *common, "--prompts", prompts, "--arms", "R,C_QB").code == 0


def test_every_command_follows_the_way_the_reference_reads_its_prompt(
    tiny_eager: Path, tmp_path: Path, qbpass_run: Run
) -> None:
    bundle, prompts, ids = tmp_path / "bundle", tmp_path / "p.jsonl", [7, 8, 9, 7, 8, 9, 7]
    written = qbpass_run("rewrite", tiny_eager, bundle, "--threads", 2, "--prefill", "one")
    assert written.code == 0
    assert "active in: TARGET_PREFILL, TARGET_CONTINUATION" in written.out
    common = ["--threads", 2, "--max-new-tokens", 12]
    text = ",".join(map(str, ids))
    assert qbpass_run("generate", bundle, *common, "--token-ids", text, "--json", tmp_path / "g.json").code == 0
    result = json.loads((tmp_path / "g.json").read_text())
    assert result["recipe"]["prefill"] == "one"
    serial = SerialTarget.from_frozen(open_bundle(bundle).reference, SessionSpec(threads=2), prefill="one")
    stops = frozenset(open_bundle(bundle).manifest.eos_token_ids)
    assert (
        tuple(result["endpoint"]["token_ids"]) == Engine(serial).generate(Request(tuple(ids), 12, stops))[0].token_ids
    )
    prompts.write_text(json.dumps({"id": "a", "token_ids": ids}) + "\n")
    report = tmp_path / "q.json"
    assert qbpass_run("qualify", bundle, *common, "--prompts", prompts, "--json", report).code == 0
    arms = json.loads(report.read_text())["arms"]
    assert arms["C_QB"]["logit_rows_equal"] == arms["C_QB"]["logit_rows"] > 0
    assert arms["C_MQ"]["logit_rows_equal"] < arms["C_MQ"]["logit_rows"]


def test_gs_runs_a_decoder_whose_attention_is_not_rewritten(tmp_path: Path, qbpass_run: Run) -> None:
    model, bundle, prompts = cached_export("builtin:tiny", "onnx"), tmp_path / "bundle", tmp_path / "p.jsonl"
    written = qbpass_run("rewrite", model, bundle, "--threads", 2, "--layout", "gs")
    assert written.code == 0
    assert "layout gs, active in: TARGET_CONTINUATION; up to 4 rows" in written.out
    common = ["--threads", 2, "--max-new-tokens", 12]
    assert qbpass_run("generate", bundle, *common, "--token-ids", "1,2,3").code == 0
    prompts.write_text(json.dumps({"id": "a", "token_ids": [7, 8, 9, 7, 8]}) + "\n")
    assert qbpass_run("qualify", bundle, *common, "--prompts", prompts, "--json", tmp_path / "q.json").code == 0
    arms = json.loads((tmp_path / "q.json").read_text())["arms"]
    assert list(arms) == ["R", "C_MQ", "C_GS"]
    assert arms["C_GS"]["logit_rows_equal"] == arms["C_GS"]["logit_rows"] > 0
    assert arms["C_MQ"]["logit_rows_equal"] < arms["C_MQ"]["logit_rows"]
    assert (
        qbpass_run("probe", bundle, "--threads", 2, "--only", "rows", "--past", 8, "--json", tmp_path / "p.json").code
        == 0
    )
    probed = json.loads((tmp_path / "p.json").read_text())
    assert {case["graph"] for case in probed["cases"]} == {"frozen"}
    assert [curve["graph"] for curve in probed["curves"]] == ["frozen", "active"]


@pytest.mark.parametrize(
    ("prefill", "why"),
    [
        ("chunks:8", "8 prompt rows in one native call"),
        ("whole", "the whole prompt in one native call"),
    ],
)
def test_a_mask_the_reference_leaves_no_room_for_is_exit_code_1(
    tiny_eager: Path, tmp_path: Path, qbpass_run: Run, prefill: str, why: str
) -> None:
    answer = qbpass_run("rewrite", tiny_eager, tmp_path / "b", "--prefill", prefill, "--phase-mask", 3)
    assert answer.code == 1
    (line,) = answer.err.strip().splitlines()
    assert why in line
    assert not (tmp_path / "b").exists()


def test_qualify_compares_every_arm_and_says_so_in_json_and_in_its_exit_code(
    tiny_bundle: Bundle, tmp_path: Path, qbpass_run: Run
) -> None:
    prompts = tmp_path / "p.jsonl"
    entries = [{"id": "a", "domain": "d", "prompt": PROMPT}, {"id": "b", "token_ids": [5, 6, 5, 6]}]
    prompts.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    common = ["qualify", tiny_bundle.folder, "--threads", 2, "--prompts", prompts, "--max-new-tokens", 24]
    answer = qbpass_run(*common, "--replay-rows", 6, "--json", tmp_path / "q.json")
    report = json.loads((tmp_path / "q.json").read_text())
    assert answer.code == 0
    assert list(report["arms"]) == ["R", "C_MQ", "C_QB", "C_PQ"]
    for name in ("C_QB", "C_PQ"):
        arm = report["arms"][name]
        assert (arm["endpoints"], arm["equal"], arm["first_difference"]) == (2, 2, None)
        assert arm["logit_rows"] == arm["logit_rows_equal"] > 0
        assert arm["ratio_to_R"] > 0
        assert name in answer.out
    assert report["recipe"]["threads"] == 2


def test_usage_errors_are_exit_code_2(tiny_bundle: Bundle, qbpass_run: Run) -> None:
    assert qbpass_run("no-such-command").code == 2
    assert qbpass_run("generate", tiny_bundle.folder, "-k", "many").code == 2
    assert qbpass_run("generate").code == 2


def test_an_interrupt_is_exit_code_130_without_a_traceback(
    tiny_bundle: Bundle, qbpass_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "generate", interrupted)
    answer = qbpass_run("generate", tiny_bundle.folder, "--threads", 2, "-p", "x")
    assert answer.code == 130
    assert "Traceback" not in answer.err


def test_a_bug_keeps_its_traceback(tiny_bundle: Bundle, qbpass_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **named: object) -> None:
        raise AssertionError("counters")

    monkeypatch.setattr(Engine, "generate", broken)
    with pytest.raises(AssertionError, match="counters"):
        qbpass_run("generate", tiny_bundle.folder, "--threads", 2, "-p", "x")


def test_the_version_and_the_commands_are_shown(qbpass_run: Run) -> None:
    assert qbpass_run("--version").out.startswith("qbpass ")
    shown = qbpass_run("--help").out
    assert [name for name in ("export", "admit", "rewrite", "generate", "qualify") if name not in shown] == []


def test_the_entry_point_exits_with_the_commands_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["qbpass", "no-such-command"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
