"""Whatever is wrong with the input, the answer is exit code 2 and one line on stderr."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import broken_models
import onnxruntime
import pytest

from qbpass.rewrites.bundle import Bundle

Mistake = Callable[..., str]
HAS_CUDA = "CUDAExecutionProvider" in onnxruntime.get_available_providers()

BROKEN: dict[Callable[[Path], None], str] = {
    broken_models.not_onnx: "ONNX",
    broken_models.truncated_graph: "ONNX",
    broken_models.empty_graph: "empty",
    broken_models.missing_weights: "model.onnx.data",
    broken_models.truncated_weights: "model.onnx.data",
    broken_models.escaping_weights: "elsewhere.data",
}
#: Graphs in order that are no decoder qbpass can run: admit reports on them (test_admission_report.py).
NO_DECODER: dict[Callable[[Path], None], str] = {
    broken_models.no_kv_inputs: "KV",
    broken_models.last_token_logits: "last",
}


@pytest.fixture
def model(tiny_eager: Path, tmp_path: Path) -> Path:
    """A healthy export of one's own, to be broken."""
    return Path(shutil.copytree(tiny_eager, tmp_path / "model"))


@pytest.fixture
def bundle(tiny_bundle: Bundle, tmp_path: Path) -> Path:
    """A healthy bundle of one's own, for two threads."""
    return Path(shutil.copytree(tiny_bundle.folder, tmp_path / "bundle"))


@pytest.mark.parametrize(
    ("command", "damage"),
    [*product(["admit", "rewrite"], BROKEN), *product(["rewrite"], NO_DECODER)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_an_unusable_model_is_one_line_that_names_the_reason(
    command: str, damage: Callable[[Path], None], model: Path, tmp_path: Path, mistake: Mistake
) -> None:
    damage(model)
    line = mistake(command, model, *([tmp_path / "out"] if command == "rewrite" else []))
    assert (BROKEN | NO_DECODER)[damage] in line
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_not_there(tmp_path: Path, mistake: Mistake) -> None:
    assert "nowhere.onnx" in mistake("admit", tmp_path / "nowhere.onnx")


def test_a_prompt_longer_than_the_context(bundle: Path, tmp_path: Path, mistake: Mistake) -> None:
    line = mistake("generate", bundle, "--threads", 2, "-p", "x" * 513)
    assert "513" in line
    assert "512" in line
    prompts = tmp_path / "p.jsonl"
    entries = [{"id": "short", "prompt": "x"}, {"id": "long", "prompt": "x" * 513}]
    prompts.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert "513" in mistake("qualify", bundle, "--threads", 2, "--prompts", prompts)


@pytest.mark.skipif(HAS_CUDA, reason="this ONNX Runtime has the CUDA provider")
@pytest.mark.parametrize("command", ["admit", "rewrite", "generate", "qualify"])
def test_a_provider_that_is_not_there_is_an_error_and_never_a_fallback(
    command: str, bundle: Path, model: Path, tmp_path: Path, mistake: Mistake
) -> None:
    rest = {
        "admit": [model],
        "rewrite": [model, tmp_path / "out"],
        "generate": [bundle, "-p", "x"],
        "qualify": [bundle, "--prompts", tmp_path / "p.jsonl"],
    }[command]
    assert "CUDAExecutionProvider" in mistake(command, *rest, "--provider", "cuda")


def test_a_provider_nobody_knows(bundle: Path, mistake: Mistake) -> None:
    assert "tpu" in mistake("generate", bundle, "-p", "x", "--provider", "tpu")


@pytest.mark.parametrize("command", ["generate", "qualify"])
def test_a_bundle_whose_recipe_is_not_this_processs(
    command: str, bundle: Path, tmp_path: Path, mistake: Mistake
) -> None:
    manifest = json.loads((bundle / "qbpass.json").read_text())
    manifest["recipe"]["threads"] = 7
    (bundle / "qbpass.json").write_text(json.dumps(manifest))
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"id": "a", "prompt": "x"}\n')
    rest = ["-p", "x"] if command == "generate" else ["--prompts", prompts]
    assert "threads: bundle 7, this process 2" in mistake(command, bundle, "--threads", 2, *rest)


def test_weights_that_are_not_the_bundles(bundle: Path, mistake: Mistake) -> None:
    manifest = json.loads((bundle / "qbpass.json").read_text())
    ((location, file),) = manifest["weights"].items()
    data = bytearray((Path(file["folder"]) / location).read_bytes())
    data[100] ^= 1
    (bundle / location).write_bytes(data)
    file["folder"] = str(bundle)
    (bundle / "qbpass.json").write_text(json.dumps(manifest))
    line = mistake("generate", bundle, "--threads", 2, "-p", "x")
    assert f"weights {location}: bundle" in line


def test_a_bundle_whose_models_weights_are_gone(bundle: Path, tmp_path: Path, mistake: Mistake) -> None:
    manifest = json.loads((bundle / "qbpass.json").read_text())
    for file in manifest["weights"].values():
        file["folder"] = str(tmp_path / "gone")
    (bundle / "qbpass.json").write_text(json.dumps(manifest))
    line = mistake("generate", bundle, "--threads", 2, "-p", "x")
    assert str(tmp_path / "gone") in line
    assert "--copy-weights" in line


def test_a_manifest_cut_in_half(bundle: Path, mistake: Mistake) -> None:
    text = (bundle / "qbpass.json").read_text()
    (bundle / "qbpass.json").write_text(text[: len(text) // 2])
    assert "qbpass.json" in mistake("generate", bundle, "-p", "x")


def test_a_folder_that_is_no_bundle(tmp_path: Path, mistake: Mistake) -> None:
    assert "not a bundle" in mistake("generate", tmp_path, "-p", "x")


def test_logits_that_are_not_numbers(model: Path, tmp_path: Path, mistake: Mistake) -> None:
    broken_models.nan_weights(model)
    assert "NaN" in mistake("rewrite", model, tmp_path / "b", "--threads", 2)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("not json", "line 2"),
        ('{"id": "b"}', "line 2"),
        ('{"id": "b", "token_ids": []}', "line 2"),
        ('{"id": "a", "prompt": "again"}', "twice"),
        ('{"id": "b", "token_ids": [99999]}', "99999"),
    ],
)
def test_a_prompt_file_that_can_not_be_used(
    line: str, reason: str, bundle: Path, tmp_path: Path, mistake: Mistake
) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"id": "a", "prompt": "x"}\n' + line + "\n")
    assert reason in mistake("qualify", bundle, "--threads", 2, "--prompts", prompts)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["-p", "x", "--draft", "myself"], "no --draft myself"),
        (["-p", "x", "--draft", "not/here"], "--draft not/here: there is no such file or folder"),
        (["-p", "x", "--token-ids", "1"], "either"),
        ([], "either"),
        (["--token-ids", "1,x"], "numbers"),
        (["--token-ids", ""], "empty"),
        (["--token-ids", "257"], "257"),
    ],
)
def test_options_of_generate_that_can_not_be_used(
    arguments: list[str], reason: str, bundle: Path, mistake: Mistake
) -> None:
    assert reason in mistake("generate", bundle, "--threads", 2, *arguments)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--layout", "sg"), ("--layout", "mq"), ("--emit", "loops"), ("--provider", "npu"), ("--prefill", "two")],
)
def test_options_of_rewrite_that_this_version_does_not_have(
    option: str, value: str, model: Path, tmp_path: Path, mistake: Mistake
) -> None:
    assert value in mistake("rewrite", model, tmp_path / "out", option, value)


@pytest.mark.parametrize(
    "value", ["", "all", "chunks", "chunks:", "chunks:0", "chunks:-3", "chunks:٣", "chunks:1", "One"]
)
def test_a_way_to_read_prompts_that_is_none(value: str, model: Path, tmp_path: Path, mistake: Mistake) -> None:
    line = mistake("rewrite", model, tmp_path / "out", "--prefill", value)
    assert f"--prefill {value}" in line
    assert "one" in line


def test_an_arm_that_this_version_does_not_have(bundle: Path, tmp_path: Path, mistake: Mistake) -> None:
    assert "M_XS" in mistake("qualify", bundle, "--prompts", tmp_path / "p.jsonl", "--arms", "R,M_XS")


def test_a_folder_that_is_taken_is_left_alone(model: Path, tmp_path: Path, mistake: Mistake) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    assert "not empty" in mistake("rewrite", model, tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_a_place_that_can_not_be_written(model: Path, tmp_path: Path, mistake: Mistake) -> None:
    (tmp_path / "file").write_text("")
    assert "file" in mistake("rewrite", model, tmp_path / "file" / "out")


@pytest.mark.skipif(HAS_CUDA, reason="this ONNX Runtime has the CUDA provider")
def test_tf32_is_asked_for_by_the_providers_name(bundle: Path, mistake: Mistake) -> None:
    assert "CUDAExecutionProvider is not in this" in mistake("generate", bundle, "-p", "x", "--provider", "cuda:tf32")
    assert "unknown provider 'cpu:tf32'" in mistake("generate", bundle, "-p", "x", "--provider", "cpu:tf32")
