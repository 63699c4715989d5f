"""`qbpass generate` with options of how tokens are chosen."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qbpass.rewrites.bundle import Bundle

Run = Callable[..., Any]
PROMPT = "one two one two"


@pytest.fixture
def generate(tiny_bundle: Bundle, tmp_path: Path, qbpass_run: Run) -> Callable[..., tuple[dict[str, Any], Any]]:
    """`generate(*options)`: the result and what was printed."""

    def call(*options: object, tokens: int = 24) -> tuple[dict[str, Any], Any]:
        file = tmp_path / "result.json"
        common = ["-p", PROMPT, "--threads", 2, "--max-new-tokens", tokens, "--json", file]
        answer = qbpass_run("generate", tiny_bundle.folder, *common, *options)
        assert answer.code == 0, answer.err
        return json.loads(file.read_text()), answer

    return call


DRAWN = ["--temperature", 1.2, "--top-k", 60, "--top-p", 0.95, "--min-p", 0.001, "--repetition-penalty", 1.1]
DRAWN += ["--presence-penalty", 0.2, "--frequency-penalty", 0.1, "--min-tokens", 3]


def test_the_same_seed_is_the_same_text_with_and_without_drafting(generate: Run) -> None:
    drafted, answer = generate(*DRAWN, "--seed", 2**64 - 1)
    serial, _ = generate(*DRAWN, "--seed", 2**64 - 1, "--draft", "none")
    other, _ = generate(*DRAWN, "--seed", 1)
    assert drafted["endpoint"] == serial["endpoint"] != other["endpoint"]
    assert drafted["sampling"]["seed"] == 2**64 - 1
    assert drafted["sampling"]["top_p"] == 0.95
    assert f"drawn with --seed {2**64 - 1}" in answer.err


def test_a_seed_that_was_not_given_is_drawn_and_shown(generate: Run) -> None:
    first, answer = generate(*DRAWN)
    seed = int(re.search(r"drawn with --seed (\d+)", answer.err)[1])  # type: ignore[index]
    assert first["sampling"]["seed"] == seed
    again, _ = generate(*DRAWN, "--seed", seed)
    assert again["endpoint"] == first["endpoint"]
    assert generate(*DRAWN)[0]["sampling"]["seed"] != seed


def test_greedy_decoding_draws_nothing_and_names_no_seed(generate: Run) -> None:
    result, answer = generate()
    assert result["sampling"]["seed"] is None
    assert "--seed" not in answer.err


def test_a_stop_string_ends_the_text_before_it(generate: Run) -> None:
    whole = generate()[0]["text"]
    stop = whole[7:9]
    result, answer = generate("--stop", stop, "--stop", "never in any text")
    assert result["endpoint"]["stop_reason"] == "stop_string"
    assert result["text"] == whole[: whole.index(stop)]
    assert answer.out == result["text"] + "\n"


def test_biases_and_min_tokens_change_what_is_chosen(generate: Run, tiny_bundle: Bundle) -> None:
    plain = generate()[0]["endpoint"]["token_ids"]
    banned = generate("--bias", f"{plain[0]}:-inf", "--bias", "7:0.5")[0]
    assert plain[0] not in banned["endpoint"]["token_ids"]
    assert banned["sampling"]["bias"] == {str(plain[0]): "-inf", "7": 0.5}
    (end,) = tiny_bundle.manifest.eos_token_ids
    assert generate("--bias", f"{end}:100")[0]["endpoint"]["length"] == 1
    assert generate("--bias", f"{end}:100", "--min-tokens", 5)[0]["endpoint"]["length"] == 6


@pytest.mark.parametrize(
    ("option", "source", "language"),
    [
        ("--regex", "(ab|c){2,3}\n", "(ab|c){2,3}"),
        ("--grammar", 'start: "x" /[0-9]{2}/', "x[0-9]{2}"),
        ("--json-schema", '{"enum": [12, "twelve"]}', '12|"twelve"'),
    ],
)
@pytest.mark.parametrize("draft", ["ngram", "none"])
def test_text_of_a_grammar_alone(
    option: str, source: str, language: str, draft: str, generate: Run, tmp_path: Path
) -> None:
    pytest.importorskip("llguidance")
    (tmp_path / "language").write_text(source)
    result, _ = generate(option, tmp_path / "language", "--draft", draft)
    assert re.fullmatch(language, result["text"]), result["text"]
    assert result["endpoint"]["stop_reason"] == "end_of_generation"
    assert result["sampling"]["grammar"]["source"] == source.removesuffix("\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--temperature", -1], "temperature is -1.0: give 0 (greedy) or more"),
        (["--top-p", 0.5], "--top-p is for drawing, and a temperature of 0 draws nothing: give --temperature"),
        (["--seed", 1], "--seed is for drawing"),
        (["--temperature", 1, "--seed", -1], "seed is -1"),
        (["--bias", "x:1"], "--bias takes a token id and a number, such as 42:-1.5, not 'x:1'"),
        (["--bias", "3"], "--bias takes a token id and a number"),
        (["--bias", "999:1"], "token id 999 of bias is outside the vocabulary of 257"),
        (["--bias", "3:nan"], "bias of token 3 is nan"),
        (["--stop", ""], "stop strings: at most 16, each of 1 to 1000 characters"),
        (["--regex", "nowhere"], "nowhere: No such file"),
        (["--regex", "BAD", "--json-schema", "BAD"], "give one of --json-schema, --grammar and --regex"),
        (["--regex", "BAD"], "the regex can't be used"),
        (["--json-schema", "BAD"], "the JSON schema is not JSON"),
        (["--grammar", "BYTES"], "is not UTF-8"),
    ],
)
def test_an_option_that_cannot_be_is_an_error_of_one_line(
    options: list[object], said: str, tiny_bundle: Bundle, mistake: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "BAD").write_text("(")
    (tmp_path / "BYTES").write_bytes(b"\xff")
    given = [tmp_path / str(option) if option in ("BAD", "BYTES") else option for option in options]
    assert said in mistake("generate", tiny_bundle.folder, "--threads", 2, "-p", "x", *given)
