"""Prompt files are read line by line, and an error names the line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qbpass.evidence import prompts as prompts_module
from qbpass.evidence.options import QualifyOptions
from qbpass.evidence.prompts import Prompt, read_prompts
from qbpass.models.errors import PromptError


class Codec:
    """Bytes as tokens, behind one token of a chat template."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_prompt(self, text: str) -> list[int]:
        return [256, *self.encode(text)]


def written(folder: Path, *lines: object) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), "utf-8")
    return path


def test_every_line_is_a_prompt_in_order(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"id": "a", "domain": "code", "prompt": "hi"},
        "",
        {"id": 7, "category": "chat", "token_ids": [3, 1]},
        {"prompt": "é"},
    )
    assert read_prompts(path, Codec()) == [  # type: ignore[arg-type]
        Prompt("a", "code", (256, 104, 105), "hi"),
        Prompt("7", "chat", (3, 1)),
        Prompt("4", "", (256, 195, 169), "é"),
    ]


def test_raw_text_goes_without_the_chat_template(tmp_path: Path) -> None:
    path = written(tmp_path, {"id": "a", "prompt": "hi"})
    assert read_prompts(path, Codec(), raw=True)[0].token_ids == (104, 105)  # type: ignore[arg-type]


GOOD = {"id": "good", "token_ids": [1]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 is not an object"),
        ({"id": "x"}, 'line 2 has neither "prompt" text nor "token_ids"'),
        ({"prompt": ""}, 'line 2 has neither "prompt" text'),
        ({"prompt": 3}, 'line 2 has neither "prompt" text'),
        ({"prompt": "text"}, "line 2 is text, and the model came without a tokenizer"),
        ({"token_ids": []}, 'line 2: "token_ids" must be a list of token ids'),
        ({"token_ids": [1, -1]}, 'line 2: "token_ids" must be'),
        ({"token_ids": [1, True]}, 'line 2: "token_ids" must be'),
        ({"token_ids": [1.0]}, 'line 2: "token_ids" must be'),
        ({"token_ids": "12"}, 'line 2: "token_ids" must be'),
        (GOOD, "has the id 'good' twice"),
    ],
)
def test_an_error_names_the_line_in_one_line(tmp_path: Path, line: object, message: str) -> None:
    with pytest.raises(PromptError, match=message) as raised:
        read_prompts(written(tmp_path, GOOD, line), None)
    assert "\n" not in str(raised.value)


def test_files_that_hold_no_prompts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="can't be read as UTF-8 text"):
        read_prompts(tmp_path / "not there.jsonl", None)
    with pytest.raises(PromptError, match="holds no prompts"):
        read_prompts(written(tmp_path, "", "  "), None)
    path = tmp_path / "latin1.jsonl"
    path.write_bytes('{"prompt": "é"}'.encode("latin-1"))
    with pytest.raises(PromptError, match="can't be read as UTF-8 text"):
        read_prompts(path, None)


def test_a_file_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts_module, "MAX_FILE_BYTES", 10)
    with pytest.raises(PromptError, match="is larger than 10 bytes: split it"):
        read_prompts(written(tmp_path, GOOD), None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arms": ("R", "C_XX")}, "no arm C_XX: choose among R, M_MQ, M_QB, M_PQ, M_GS, C_MQ, C_QB, C_PQ, C_GS"),
        ({"arms": ("C_QB",)}, "arm R is the reference"),
        ({"arms": ("R", "C_QB", "C_QB")}, "named twice"),
        ({"policy": "greedy"}, "no policy 'greedy': choose one of adaptive, fixed"),
        ({"k": 0}, "must be at least 1"),
        ({"max_new_tokens": 0}, "must be at least 1"),
        ({"repeats": 0}, "must be at least 1"),
        ({"replay_rows": -1}, "--replay-rows at least 0"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_one_line(options: dict[str, object], message: str) -> None:
    with pytest.raises(PromptError, match=message) as raised:
        QualifyOptions(**options)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_replay_may_be_turned_off() -> None:
    assert QualifyOptions(replay_rows=0).replay_rows == 0
