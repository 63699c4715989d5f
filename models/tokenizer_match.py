"""Do two models speak of the same tokens? A draft's proposals are ids, so every id must mean one text to both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qbpass.models.errors import ModelFileError
from qbpass.models.tokenizer import TextCodec


def first_difference(target: Mapping[str, Path], draft: Mapping[str, Path]) -> str | None:
    """One line that names what two tokenizers differ in, by their `tokenizer_files`; None where they don't.

    Compared are the tokens and their ids, added and special tokens, and the merges. Models that both come without a
    tokenizer can't differ in it. Raises ModelFileError where a tokenizer.json is damaged.
    """
    there = ["tokenizer.json" in files for files in (target, draft)]
    if not any(there):
        return None
    if not all(there):
        return f"the {'draft' if there[0] else 'target'} comes without tokenizer.json"
    ours, theirs = (_tokenizer(files) for files in (target, draft))
    return _vocabulary(ours, theirs) or _added(ours, theirs) or _merges(ours, theirs)


def largest_id(files: Mapping[str, Path]) -> int | None:
    """Of all tokens; None without a tokenizer."""
    if "tokenizer.json" not in files:
        return None
    tokenizer = _tokenizer(files)
    added = [entry["id"] for entry in tokenizer.get("added_tokens") or []]
    return max([*_ids(tokenizer).values(), *added], default=None)


def _tokenizer(files: Mapping[str, Path]) -> dict[str, Any]:
    definition: Any = json.loads(TextCodec(files).definition)
    if not isinstance(definition, dict):
        raise ModelFileError(f"{files['tokenizer.json']} is not a tokenizer: take it from the source again")
    return definition


def _ids(tokenizer: dict[str, Any]) -> dict[str, int]:
    """A list of [piece, score] counts its pieces."""
    vocabulary = (tokenizer.get("model") or {}).get("vocab") or {}
    if isinstance(vocabulary, dict):
        return vocabulary
    return {entry[0]: index for index, entry in enumerate(vocabulary)}


def _vocabulary(ours: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    a, b = _ids(ours), _ids(theirs)
    if a == b:
        return None
    token, number = next(
        (t, n) for t, n in sorted({**b, **a}.items(), key=lambda each: each[1]) if a.get(t) != b.get(t)
    )
    del number
    return f"token {token!r} is {_said(a.get(token))} for the target and {_said(b.get(token))} for the draft"


def _said(number: int | None) -> str:
    return "no token" if number is None else f"id {number}"


def _added(ours: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    def by_id(tokenizer: dict[str, Any]) -> dict[int, tuple[str, bool]]:
        entries = tokenizer.get("added_tokens") or []
        return {entry["id"]: (entry["content"], bool(entry.get("special"))) for entry in entries}

    a, b = by_id(ours), by_id(theirs)
    for number in sorted({*a, *b}):
        if a.get(number) != b.get(number):
            texts = [_kind(each.get(number)) for each in (a, b)]
            return f"added token {number} is {texts[0]} for the target and {texts[1]} for the draft"
    return None


def _kind(entry: tuple[str, bool] | None) -> str:
    return "none" if entry is None else f"{entry[0]!r}{', special' if entry[1] else ''}"


def _merges(ours: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    a, b = ([_pair(merge) for merge in (each.get("model") or {}).get("merges") or []] for each in (ours, theirs))
    if a == b:
        return None
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    texts = [repr(each[at]) if at < len(each) else "none" for each in (a, b)]
    return f"merge {at} is {texts[0]} for the target and {texts[1]} for the draft"


def _pair(merge: Any) -> str:
    """Written as one string by older libraries, as a pair by newer ones."""
    return merge if isinstance(merge, str) else " ".join(merge)
