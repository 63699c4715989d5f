"""A draft speaks of the target's own tokens, or the first difference is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qbpass.models.tokenizer_match import first_difference, largest_id

VOCABULARY = {"<unk>": 0, "a": 1, "b": 2, "ab": 3, "abb": 4}
MERGES = [["a", "b"], ["ab", "b"]]
ADDED = {"id": 5, "content": "<end>", "special": True, "single_word": False, "lstrip": False, "rstrip": False}


def tokenizer(folder: Path, vocabulary: Any = None, merges: Any = None, added: Any = None) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    model = {"type": "BPE", "vocab": vocabulary or VOCABULARY, "merges": MERGES if merges is None else merges}
    entries = [{**ADDED, "normalized": False, **entry} for entry in ([{}] if added is None else added)]
    content = {"version": "1.0", "added_tokens": entries, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return {"tokenizer.json": folder / "tokenizer.json"}


def test_the_same_tokenizer_written_otherwise_is_the_same(tmp_path: Path) -> None:
    ours = tokenizer(tmp_path / "a")
    theirs = tokenizer(tmp_path / "b", dict(reversed(VOCABULARY.items())), ["a b", "ab b"])
    assert first_difference(ours, theirs) is None
    assert largest_id(ours) == 5


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"vocabulary": {**VOCABULARY, "b": 3, "ab": 2}}, "token 'b' is id 2 for the target and id 3 for the draft"),
        ({"vocabulary": {**VOCABULARY, "bb": 6}}, "token 'bb' is no token for the target and id 6 for the draft"),
        ({"added": []}, "added token 5 is '<end>', special for the target and none for the draft"),
        (
            {"added": [{"special": False}]},
            "added token 5 is '<end>', special for the target and '<end>' for the draft",
        ),
        ({"merges": [["a", "b"]]}, "merge 1 is 'ab b' for the target and none for the draft"),
        ({"merges": [["ab", "b"], ["a", "b"]]}, "merge 0 is 'a b' for the target and 'ab b' for the draft"),
    ],
)
def test_the_first_difference_is_named_in_one_line(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    ours = tokenizer(tmp_path / "a")
    theirs = tokenizer(tmp_path / "b", **changed)
    assert first_difference(ours, theirs) == said


def test_models_without_a_tokenizer_can_not_differ_and_one_of_two_can_not_be_compared(tmp_path: Path) -> None:
    ours = tokenizer(tmp_path / "a")
    assert first_difference({}, {}) is None
    assert first_difference(ours, {}) == "the draft comes without tokenizer.json"
    assert first_difference({}, ours) == "the target comes without tokenizer.json"
    assert largest_id({}) is None
