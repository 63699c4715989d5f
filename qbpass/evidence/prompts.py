"""Prompt files: one JSON object a line, {"id", "domain", "prompt"} or {"id", "token_ids"}."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qbpass.models.errors import PromptError
from qbpass.models.tokenizer import TextCodec

MAX_FILE_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Prompt:
    """One prompt as the model gets it. `text` is None where the file gave token ids."""

    id: str
    domain: str
    token_ids: tuple[int, ...]
    text: str | None = None


def read_prompts(path: Path, codec: TextCodec | None, raw: bool = False) -> list[Prompt]:
    """Every prompt of a file, in order.

    codec: None where the model has no tokenizer; then every line must give token_ids. raw: text as it is, without the
    chat template. Raises PromptError that names the line.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise PromptError(f"{path} is larger than {MAX_FILE_BYTES:,} bytes: split it")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"{path} can't be read as UTF-8 text ({error}): give a .jsonl file of prompts") from error
    prompts = [_prompt(path, number, line, codec, raw) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise PromptError(f"{path} holds no prompts: give one JSON object a line")
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise PromptError(f"{path} has the id {prompt.id!r} twice: ids name prompts in the report")
        seen.add(prompt.id)
    return prompts


def _prompt(path: Path, number: int, line: str, codec: TextCodec | None, raw: bool) -> Prompt:
    where = f"{path}, line {number}"
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise PromptError(f"{where} is not JSON ({error}): give one object a line") from error
    if not isinstance(entry, dict):
        raise PromptError(f'{where} is not an object: give {{"id", "domain", "prompt"}}')
    name, domain = str(entry.get("id", number)), str(entry.get("domain", entry.get("category", "")))
    if "token_ids" in entry:
        return Prompt(name, domain, _token_ids(where, entry["token_ids"]))
    text = entry.get("prompt")
    if not isinstance(text, str) or not text:
        raise PromptError(f'{where} has neither "prompt" text nor "token_ids"')
    if codec is None:
        raise PromptError(f'{where} is text, and the model came without a tokenizer: give "token_ids"')
    ids = codec.encode(text) if raw else codec.encode_prompt(text)
    return Prompt(name, domain, tuple(ids), text)


def _token_ids(where: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(token) is int and token >= 0 for token in value):
        raise PromptError(f'{where}: "token_ids" must be a list of token ids, at least one')
    return tuple(value)
