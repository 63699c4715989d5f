"""A recipe names everything a reference's bits depend on, and a mismatch can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tiny_graphs import save, tiny_decoder

from qbpass.models.decoder import Decoder
from qbpass.models.freeze import freeze
from qbpass.models.loading import load_decoder
from qbpass.models.processor import instruction_sets, processor_name
from qbpass.models.recipe import Recipe, machine_facts, mismatches, recipe_of
from qbpass.models.session import PROVIDERS, SessionSpec

SPEC = SessionSpec(threads=2)


@pytest.fixture
def frozen(tmp_path: Path) -> Decoder:
    source = tmp_path / "source"
    save(tiny_decoder(1), source)
    (source / "tokenizer.json").write_text("{}")
    (source / "config.json").write_text('{"eos_token_id": 2}')
    return freeze(load_decoder(source), tmp_path / "frozen", SPEC)


def test_the_same_decoder_in_the_same_process_has_the_same_recipe(frozen: Decoder) -> None:
    assert recipe_of(frozen, SPEC) == recipe_of(load_like(frozen), SPEC)
    assert mismatches(recipe_of(frozen, SPEC), recipe_of(frozen, SPEC)) == []


def load_like(decoder: Decoder) -> Decoder:
    again = load_decoder(decoder.path)
    return Decoder(again.path, again.model, again.interface, None, decoder.eos_token_ids, decoder.tokenizer_files)


def test_a_recipe_survives_json(frozen: Decoder) -> None:
    recipe = recipe_of(frozen, SPEC, prefill="chunks:16")
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


def test_a_recipe_says_what_runs_it(frozen: Decoder) -> None:
    recipe = recipe_of(frozen, SPEC)
    assert (recipe.provider, recipe.threads, recipe.gpu) == ("CPUExecutionProvider", 2, None)
    assert (recipe.optimization_level, recipe.prefill, recipe.sampling) == ("default, frozen", "whole", "greedy")
    assert recipe.stop_ids == (2,)
    assert list(recipe.weights) == ["reference.data"]
    assert list(recipe.tokenizer) == ["tokenizer.json"]  # config.json chooses no token


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"threads": 4}, "threads: bundle 2, this process 4"),
        ({"ort_version": "0.0.1"}, ", this process 0.0.1"),
        ({"stop_ids": (1, 2)}, "stop ids: bundle 2, this process 1 2"),
        ({"gpu": "Some GPU"}, "gpu: bundle none, this process Some GPU"),
        ({"weights": {"reference.data": "0" * 64}}, "this process 000000000000…"),
        ({"tokenizer": {}}, "this process none"),
        ({"environment": {"ORT_X": "1"}}, "environment ORT_X: bundle none, this process 1"),
        ({"instruction_sets": ("sse",)}, "this process sse"),
    ],
)
def test_each_difference_is_one_readable_line(frozen: Decoder, change: dict[str, Any], line: str) -> None:
    recipe = recipe_of(frozen, SPEC)
    lines = mismatches(recipe, recipe.model_copy(update=change))
    assert len(lines) == 1
    assert lines[0].endswith(line)
    assert lines[0].startswith(next(iter(change)).replace("_", " "))


def test_a_variable_that_chooses_kernels_is_part_of_the_recipe(
    frozen: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = recipe_of(frozen, SPEC)
    monkeypatch.setenv("ORT_GQA_DISABLE_FLASH_ATTENTION", "1")
    assert mismatches(before, recipe_of(frozen, SPEC)) == [
        "environment ORT_GQA_DISABLE_FLASH_ATTENTION: bundle none, this process 1"
    ]


@pytest.mark.parametrize(("provider", "counts"), [("cpu", False), ("cuda", True)])
def test_switches_of_cublas_and_cudnn_are_part_of_a_recipe_on_cuda_alone(
    monkeypatch: pytest.MonkeyPatch, provider: str, counts: bool
) -> None:
    """Which variables are read is a matter of the provider's name: no GPU is asked."""
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: list(PROVIDERS.values()))
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    found = machine_facts(SessionSpec(provider, threads=1))
    assert {"NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG"}.issubset(found["environment"]) is counts
    assert (found["gpu"] is not None) is counts
    assert found["provider_options"] == ({"use_tf32": "0"} if counts else {})


def test_tf32_is_another_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: list(PROVIDERS.values()))
    off, on = (machine_facts(SessionSpec("cuda", threads=1, use_tf32=tf32)) for tf32 in (False, True))
    assert {key for key in off if off[key] != on[key]} == {"provider_options"}


@pytest.mark.parametrize("prefill", ["", "chunks:0", "chunks:", "all", "chunks:4x"])
def test_an_unknown_prefill_is_refused(frozen: Decoder, prefill: str) -> None:
    with pytest.raises(ValidationError, match="prefill"):
        recipe_of(frozen, SPEC, prefill=prefill)


def test_the_processor_is_read_from_the_systems_list(tmp_path: Path) -> None:
    listing = tmp_path / "cpuinfo"
    listing.write_text(
        "processor\t: 0\nmodel name\t: Example CPU\nflags\t\t: fpu avx2 amx_int8 avx512f\n\n"
        "processor\t: 1\nflags\t: none\n"
    )
    assert processor_name(listing) == "Example CPU"
    assert instruction_sets(listing) == ("avx2", "avx512f", "amx_int8")


def test_a_system_without_a_list_names_its_machine_type(tmp_path: Path) -> None:
    assert instruction_sets(tmp_path / "none") != ()
    assert processor_name(tmp_path / "none") != ""
